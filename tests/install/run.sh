#!/bin/sh
# Installs the wheel in bare systems, as a user without a compiler and without Redis, and runs the first example there.
#   sh tests/install/run.sh                     all systems, with build/wheels/evalq-*.whl (sh deploy/wheel.sh)
#   sh tests/install/run.sh bookworm noble      these systems
#   WHEEL=FILE sh tests/install/run.sh          another wheel
# Needs root and a network, and builds the wheel if there is none. The systems stay in build/install, so that an interrupted run goes on where
# it stopped. A system that passed with the same wheel and the same test is not tested again. The exit code is 1 if a system
# failed, and 77 if none failed but one could not be made.
# pip uses the index and the certificates that `pip config list` names here. EVALQ_DEBIAN_MIRROR and EVALQ_UBUNTU_MIRROR name
# other mirrors. The example runs without a network, in a network namespace of its own.
set -eu

cd "$(dirname "$0")/../.."
here=$(pwd)/tests/install
top=$(pwd)/build/install
debian=${EVALQ_DEBIAN_MIRROR:-http://deb.debian.org/debian}
ubuntu=${EVALQ_UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}
debian_keys=/usr/share/keyrings/debian-archive-keyring.gpg
ubuntu_keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
user=4321

if [ "$(id -u)" -ne 0 ]; then
    echo "install: this test needs root, because it makes whole systems" >&2
    exit 2
fi
sh deploy/bootstrap.sh test
if ! command -v debootstrap >/dev/null; then
    apt-get install -y --no-install-recommends debootstrap >/dev/null
fi
if [ -z "${WHEEL:-}" ] && [ -z "$(ls build/wheels/evalq-[0-9]*.whl 2>/dev/null)" ]; then
    sh deploy/wheel.sh
fi
wheel=${WHEEL:-$(ls build/wheels/evalq-[0-9]*.whl | head -n 1)}
if [ ! -f "$wheel" ]; then
    echo "install: there is no wheel '$wheel'" >&2
    exit 2
fi
mkdir -p "$top"
identity=$(cat "$wheel" "$here"/* | sha256sum | cut -c 1-16)

# Finds Ubuntu's keys. Debian 12 has no package of them, so they come from Debian 13's, signed by Debian.
find_ubuntu_keys() {
    [ -f "$ubuntu_keys" ] && return
    ubuntu_keys=$top/keys/usr/share/keyrings/ubuntu-archive-keyring.gpg
    [ -f "$ubuntu_keys" ] && return
    apt=$top/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    echo "deb [signed-by=$debian_keys] $debian trixie main" >"$apt/sources.list"
    set -- -q -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$apt/lists" \
        -o "Dir::Cache=$apt/cache"
    apt-get "$@" update && (cd "$apt" && apt-get "$@" download ubuntu-keyring) && dpkg-deb -x "$apt"/ubuntu-keyring_*.deb "$top/keys"
}

# make_system NAME: a bare system in $top/NAME, complete or not there at all.
make_system() {
    [ -d "$top/$1" ] && return
    case $1 in
    jammy | noble)
        find_ubuntu_keys || return 1
        set -- "$1" "$ubuntu" "--keyring=$ubuntu_keys" --components=main,universe
        ;;
    *) set -- "$1" "$debian" "--keyring=$debian_keys" ;;
    esac
    name=$1 mirror=$2 script=
    shift 2
    # debootstrap of Debian 12 does not know later releases of Ubuntu. All of them use the script gutsy.
    [ -e "/usr/share/debootstrap/scripts/$name" ] || script=/usr/share/debootstrap/scripts/gutsy
    rm -rf "$top/$name.part"
    # shellcheck disable=SC2086 # $script is a word or nothing.
    debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates "$@" "$name" "$top/$name.part" "$mirror" \
        $script || return 1
    chroot "$top/$name.part" /usr/sbin/useradd --create-home --uid "$user" user || return 1
    mv "$top/$name.part" "$top/$name"
}

# pip_setting NAME: its value here, less addresses of files, which a bare system does not have.
pip_setting() {
    python3 -m pip config get "global.$1" 2>/dev/null | tr ' ' '\n' | grep -v '^file:' | tr '\n' ' ' | sed 's/ *$//'
}

# prepare NAME: what the stages need in that system.
prepare() {
    home=$top/$1/home/user
    rm -rf "$home/test"
    mkdir "$home/test"
    cp "$wheel" "$here/inside.sh" "$here/train.py" "$here/my_eval.py" "$home/test"
    certificates=${PIP_CERT:-$(pip_setting cert)}
    [ -z "$certificates" ] || cp "$certificates" "$home/test/certificates.pem"
    {
        echo "export PIP_DISABLE_PIP_VERSION_CHECK=1"
        echo "export PIP_INDEX_URL='${PIP_INDEX_URL:-$(pip_setting index-url)}'"
        echo "export PIP_EXTRA_INDEX_URL='${PIP_EXTRA_INDEX_URL:-$(pip_setting extra-index-url)}'"
        [ -z "$certificates" ] || echo "export PIP_CERT=/home/user/test/certificates.pem"
        for proxy in http_proxy https_proxy no_proxy; do
            eval "value=\${$proxy:-}"
            [ -z "$value" ] || echo "export $proxy='$value'"
        done
    } | sed "/=''\$/d" >"$home/test/pip.env"
    chown -R "$user:$user" "$home/test"
    cp /etc/resolv.conf "$top/$1/etc/resolv.conf"
}

# stage NAME STAGE: runs a stage of inside.sh as the user. Mounts and processes end with it. Only "pip" has a network.
stage() {
    network=--net
    [ "$2" = pip ] && network=
    # shellcheck disable=SC2016,SC2086 # The inner shell expands, and $network is a word or nothing.
    unshare --mount --pid --fork --kill-child $network sh -eu -c '
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        [ -z "$4" ] || ip link set lo up
        exec chroot "--userspec=$2:$2" "$1" /usr/bin/env -i HOME=/home/user USER=user LANG=C.UTF-8 PATH=/usr/bin:/bin \
            sh -eu /home/user/test/inside.sh "$3"
    ' sh "$top/$1" "$user" "$2" "$network"
}

# try_system NAME: makes and tests one system; writes its line.
try_system() {
    log=$top/$1.log
    if ! make_system "$1" >"$log" 2>&1; then
        echo "could not be made: see $log"
        return
    fi
    rm -f "$top/$1.line"
    prepare "$1" >>"$log" 2>&1
    started=$(date +%s)
    if stage "$1" pip >>"$log" 2>&1; then
        installed=$(($(date +%s) - started)) started=$(date +%s)
        if stage "$1" use >>"$log" 2>&1; then
            versions=$(cat "$top/$1/home/user/test/versions")
            echo "passed: $versions; install $installed s, example $(($(date +%s) - started)) s" | tee "$top/$1.passed-$identity"
            return
        fi
    fi
    echo "failed: see $log"
}

failed=0 unmade=0
[ $# -gt 0 ] || set -- bookworm trixie jammy noble
echo "install: $(date -u +%F), $(basename "$wheel"), $(wc -c <"$wheel") bytes, sha256 $(sha256sum "$wheel" | cut -c 1-16)"
for name in "$@"; do
    case $name in
    bookworm | trixie | jammy | noble) ;;
    *) echo "install: unknown system '$name', expected bookworm, trixie, jammy or noble" >&2 && exit 2 ;;
    esac
    if [ -f "$top/$name.passed-$identity" ]; then
        line="$(cat "$top/$name.passed-$identity") (earlier)"
    else
        line=$(try_system "$name")
    fi
    echo "install: $name $line"
    case $line in
    failed*) failed=1 ;;
    could*) unmade=1 ;;
    esac
done
[ "$failed" -eq 0 ] || exit 1
[ "$unmade" -eq 0 ] || exit 77
