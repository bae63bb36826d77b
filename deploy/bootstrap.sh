#!/bin/sh
# Installs, by apt package name, what evalq needs to build and run (and with "test" what its tests need, with
# "peers" those against Python frameworks too).
# Debian 12 and 13, Ubuntu 24.04. Says what it does; does nothing when all is there; asks for sudo only when something is missing.
# No service is left running or enabled that was not before.
#   sh deploy/bootstrap.sh [build|test|peers]
set -eu

mode=${1:-build}
packages="build-essential cmake ninja-build pkg-config libhiredis-dev libmsgpack-dev libyaml-dev
libjansson-dev libmicrohttpd-dev libcurl4-openssl-dev libssl-dev libxxhash-dev zlib1g-dev libopenblas0-pthread
redis-server redis-tools"
optional=
case $mode in
build) ;;
test | peers)
    packages="$packages libcmocka-dev python3 python3-numpy python3-venv python3-yaml iproute2 git openssl procps
util-linux file zsh fish"
    optional="clang-14 clang-format-14 libclang-rt-14-dev spin" # Format, fuzzers, model; clang-14 is not in Debian 13.
    if [ "$mode" = peers ]; then
        packages="$packages python3-dev prometheus"
        optional="$optional chromium" # Ubuntu has but the name of it, for a program that installs a snap.
    fi
    ;;
*)
    echo "bootstrap: unknown mode '$mode', expected build, test or peers" >&2
    exit 2
    ;;
esac

# lacking PACKAGE...: those of them that are not installed.
lacking() {
    for package in "$@"; do
        state=$(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null || true)
        case $state in
        ii*) ;;
        *) printf ' %s' "$package" ;;
        esac
    done
}
# offered PACKAGE...: those of them that this release has.
offered() {
    for package in "$@"; do
        # Of one that others merely name it says nothing, and does not fail.
        if [ -n "$(apt-cache show "$package" 2>/dev/null)" ]; then
            printf ' %s' "$package"
        fi
    done
}

# shellcheck disable=SC2046,SC2086 # The lists are words on purpose.
missing=$(lacking $packages)
# shellcheck disable=SC2046,SC2086
if [ -z "$missing" ] && [ -z "$(offered $(lacking $optional))" ]; then
    echo "bootstrap: all packages for '$mode' are installed"
    exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "bootstrap: apt-get not found; install these by hand:$missing" >&2
    exit 1
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then
    as_root=sudo
    if ! command -v sudo >/dev/null 2>&1; then
        echo "bootstrap: not root and sudo not found; as root, run: apt-get install$missing" >&2
        exit 1
    fi
fi

# Debian starts a service as it installs it; a policy file that answers 101 forbids that for the while.
policy=/usr/sbin/policy-rc.d
policy_ours=
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
    policy_ours=1
fi
cleanup() {
    if [ -n "$policy_ours" ]; then
        $as_root rm -f "$policy"
    fi
}
trap cleanup EXIT

$as_root apt-get update -q
# shellcheck disable=SC2046,SC2086
missing="$missing$(offered $(lacking $optional))"
echo "bootstrap: installing$missing"
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
for service in redis-server prometheus; do
    case "$missing " in
    *" $service "*)
        if command -v systemctl >/dev/null 2>&1; then
            $as_root systemctl disable --quiet "$service" || true
        fi
        ;;
    esac
done
echo "bootstrap: done"
