/* Programs whose times are measured again and again: usage: workloads NAME COUNT. The inputs are random, but always the same. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 88172645463325252ull;

static uint64_t next(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

static int compare(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}

static uint32_t *numbers(size_t count) {
  uint32_t *made = malloc(count * sizeof *made);
  if (!made) exit(2);
  for (size_t i = 0; i < count; i++) made[i] = (uint32_t)next();
  return made;
}

static uint64_t exp_float(uint64_t count) {
  float sum = 0;
  for (uint64_t i = 0; i < count; i++) sum += expf((float)(next() % 1000) / 1000.0f);
  return (uint64_t)sum;
}

static uint64_t exp_double(uint64_t count) {
  double sum = 0;
  for (uint64_t i = 0; i < count; i++) sum += exp((double)(next() % 1000) / 1000.0);
  return (uint64_t)sum;
}

static uint64_t gray2bin(uint64_t count) {
  uint64_t sum = 0;
  for (uint64_t i = 0; i < count; i++) {
    uint64_t gray = next();
    for (int shift = 1; shift < 64; shift <<= 1) gray ^= gray >> shift;
    sum += gray & 1;
  }
  return sum;
}

static uint64_t search(uint64_t count) {
  size_t size = 1 << 16;
  uint32_t *all = numbers(size);
  uint64_t found = 0;
  qsort(all, size, sizeof *all, compare);
  for (uint64_t i = 0; i < count; i++) {
    uint32_t key = (uint32_t)next();
    found += bsearch(&key, all, size, sizeof key, compare) != NULL;
  }
  free(all);
  return found;
}

static uint64_t insertion(uint64_t count) {
  uint64_t sum = 0;
  size_t size = 256;
  for (uint64_t round = 0; round < count / size; round++) {
    uint32_t *all = numbers(size);
    for (size_t i = 1; i < size; i++) {
      uint32_t value = all[i];
      size_t at = i;
      for (; at > 0 && all[at - 1] > value; at--) all[at] = all[at - 1];
      all[at] = value;
    }
    sum += all[size / 2];
    free(all);
  }
  return sum;
}

static uint64_t quick(uint64_t count) {
  uint32_t *all = numbers(count);
  qsort(all, count, sizeof *all, compare);
  uint64_t sum = all[count / 2];
  free(all);
  return sum;
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    uint64_t (*run)(uint64_t);
  } all[] = {{"exp_float", exp_float}, {"exp_double", exp_double}, {"gray2bin", gray2bin},
             {"bsearch", search},      {"insertion", insertion},   {"qsort", quick}};
  if (argc != 3) return 2;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (strcmp(argv[1], all[i].name) == 0) {
      printf("%llu\n", (unsigned long long)all[i].run(strtoull(argv[2], NULL, 10)));
      return 0;
    }
  }
  return 2;
}
