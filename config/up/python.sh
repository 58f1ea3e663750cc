#!/bin/sh
# Finds a Python that can carry Gatehouse and hands it to bootstrap.py; says in a sentence what is missing.
# PYTHON=... in the environment names one; otherwise the newest of those that were tested.
here=$(dirname "$0")
found_old= found_bare=
for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
  path=$(command -v "$candidate" 2>/dev/null) || continue
  version=$("$path" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
  case $version in
    3.11 | 3.12 | 3.13) ;;
    *) found_old="$candidate is Python $version"; continue ;;
  esac
  if ! "$path" -c 'import venv, ensurepip' 2>/dev/null; then
    found_bare="$candidate (Python $version)"
    bare_version=$version
    continue
  fi
  exec "$path" "$here/bootstrap.py" "$@"
done
if [ -n "$found_bare" ]; then
  echo "gatehouse: $found_bare cannot make virtual environments: install its venv module (Debian and Ubuntu: apt install python3-venv, or python$bare_version-venv), then run make again." >&2
elif [ -n "${PYTHON:-}" ]; then
  echo "gatehouse: PYTHON=$PYTHON is no Python 3.11, 3.12 or 3.13${found_old:+ ($found_old)}: name one that is, or leave PYTHON out." >&2
else
  echo "gatehouse: Python 3.11, 3.12 or 3.13 is needed and none was found on PATH${found_old:+ ($found_old)}: install one, or name it with PYTHON=/path/to/python3." >&2
fi
exit 1
