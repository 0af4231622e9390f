#!/bin/sh
echo "it will take its time"
sleep "$1"
