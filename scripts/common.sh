# shellcheck shell=bash
# Sourced by every script: where the tree and the cache are, and how to speak. Nothing here acts.
# shellcheck disable=SC2034 # used by those that source it

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${OATO_CACHE:-$HOME/.cache/oato}
python=$cache/venv/bin/python
export OATO_PLAN=none # what is given no plan runs on the CPU alone, without measuring the machine first
export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}

# Prints the comment block at the top of the calling script as its help.
show_help() {
    sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"
}

# All human words go to stderr, so that stdout carries results only.
say() {
    printf '%s\n' "$*" >&2
}

die() {
    say "${0##*/}: $*"
    exit 1
}

# The command line is wrong.
misuse() {
    say "${0##*/}: $*"
    exit 2
}

# A section heading with the time since the script began.
section() {
    printf '\n==== %s  (%d:%02d)\n' "$*" $((SECONDS / 60)) $((SECONDS % 60)) >&2
}

# fetch_pypi PACKAGE==VERSION FILE SHA256 [PIP OPTION...]: downloads one file of a package through pip
# into the cache and prints its path. A complete file is used again; a download has a place of its own until it is
# verified, so that an interrupted one cannot be taken for it.
fetch_pypi() {
    local requirement=$1 file=$cache/downloads/$2 sum=$3
    local partial=$file.partial
    if ! is_sum "$file" "$sum"; then
        rm -rf "$file" "$partial"
        mkdir -p "$partial"
        say "downloading $requirement"
        "$python" -m pip download --quiet --disable-pip-version-check --no-deps \
            --dest "$partial" "${@:4}" "$requirement" >&2 ||
            die "cannot download $requirement; run it again when the network is back"
        is_sum "$partial/$2" "$sum" || die "$requirement: $2 does not have the SHA-256 $sum"
        mv "$partial/$2" "$file"
        rm -rf "$partial"
    fi
    printf '%s\n' "$file"
}

is_sum() {
    [[ -f $1 ]] && [[ $(sha256sum "$1" | cut -d ' ' -f 1) == "$2" ]]
}
