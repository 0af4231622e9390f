#!/bin/sh
# usage: judge.sh FOUND WANTED      prints the share of the lines of WANTED that FOUND has, as a score from 0 to 1
# Exit code: 0 the same, 1 different, anything else would be a failure of the judge.
exec awk '
  NR == FNR { found[FNR] = $0; next }
  { wanted++; same += ((FNR in found) && found[FNR] == $0) }
  END { print (wanted ? same / wanted : 1); exit same < wanted }
' "$1" "$2"
