# A plain build of Lua: the libraries, the interpreter and the compiler, linked statically.
CC = gcc
CFLAGS = -O2 -Wall -DLUA_COMPAT_5_3 -DLUA_USE_LINUX
OBJECTS = $(patsubst %.c,%.o,$(filter-out src/lua.c src/luac.c,$(wildcard src/*.c)))

all: src/lua src/luac

src/%.o: src/%.c
	$(CC) $(CFLAGS) -c $< -o $@

src/liblua.a: $(OBJECTS)
	ar rcs $@ $(OBJECTS)

src/lua src/luac: src/%: src/%.o src/liblua.a
	$(CC) -o $@ $< src/liblua.a -lm -ldl -Wl,-E

# Each script asserts its own result.
check: src/lua
	for script in t/*.lua; do src/lua $$script && echo "ok $$script" || exit 1; done

.PHONY: all check
