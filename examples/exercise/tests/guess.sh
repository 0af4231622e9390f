#!/bin/sh
# Plays with a submission: it guesses a number from 1 to 1000, each guess on a line, and reads the answer "higher", "lower" or
# "right". It may guess ten times.
secret=$(cat tests/guess.secret)
for try in 1 2 3 4 5 6 7 8 9 10; do
    read guess || { echo "no more guesses after $((try - 1))" >&2; exit 1; }
    case $guess in
    "$secret") echo right; echo "right after $try guesses" >&2; cat > /dev/null; exit 0 ;;
    *[!0-9]* | '') echo "not a number: $guess" >&2; exit 1 ;;
    esac
    if [ "$guess" -lt "$secret" ]; then echo higher; else echo lower; fi
done
echo "not found after $try guesses" >&2
exit 1
