#!/usr/bin/env bash
# strip.sh PROGRAM: takes names and line numbers out of a program and keeps them beside it, as PROGRAM.debug. Debuggers,
# and backtraces of the program itself, find them there. Without binutils it says so, and the program stays as it is.
set -euo pipefail
program=$1

for tool in objcopy objdump strip; do
    command -v "$tool" >/dev/null && continue
    printf 'strip: %s is not installed (package binutils); %s keeps its symbols\n' "$tool" "$program" >&2
    exit 0
done

if ! objdump --section-headers "$program" | grep -q ' \.debug_line '; then
    # Stripped before: what is beside it is of this program.
    exit 0
fi
# Cargo has the same file under another name, which is left alone: each becomes a file of its own.
work=$(mktemp -d "$program.XXXXXX")
trap 'rm -rf "$work"' EXIT
name=$(basename "$program")
objcopy --only-keep-debug "$program" "$work/$name.debug"
strip --strip-all -o "$work/$name" "$program"
(cd "$work" && objcopy --add-gnu-debuglink="$name.debug" "$name")
chmod 644 "$work/$name.debug"
mv "$work/$name.debug" "$program.debug"
mv "$work/$name" "$program"
