#!/bin/sh
# usage: judge.sh FOUND WANTED      prints the fraction of the lines of WANTED that are in FOUND, as a score from 0 to 1
# Exit code: 0 if both are the same, 1 if they differ. Any other code is a failure of the judge.
exec awk '
  NR == FNR { found[FNR] = $0; next }
  { wanted++; same += ((FNR in found) && found[FNR] == $0) }
  END { print (wanted ? same / wanted : 1); exit same < wanted }
' "$1" "$2"
