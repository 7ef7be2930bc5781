#!/usr/bin/env bash
# The Hadoop file system: target/hadoop/cairn-hadoop-VERSION.jar, with the native library in it, by Maven.
#   scripts/hadoop.sh [jar]               builds the jar
#   scripts/hadoop.sh tests               builds the jar and Hadoop's suites for file systems, with their class path
#   scripts/hadoop.sh run HOST:PORT [SUITE…]   runs the suites, or some of them, against a cluster
#   scripts/hadoop.sh test HOST:PORT [SUITE…]  does both
# CAIRN_JNI names a native library that is built already, CAIRN_HADOOP_OUT a directory to build in, HADOOP_VERSION another Hadoop than that of
# hadoop/pom.xml to compile and test with.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
out=${CAIRN_HADOOP_OUT:-$target/hadoop}

for program in java mvn; do
    command -v "$program" >/dev/null || { printf 'hadoop: %s is missing; install a JDK and Maven (Debian: default-jdk-headless maven)\n' "$program" >&2; exit 3; }
done

mode=${1:-jar}
shift || true
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

run() {
    local cluster=${1:?hadoop: name a cluster, HOST:PORT}
    mkdir -p "$out/tmp"
    exec java -Xmx1g "-Djava.io.tmpdir=$out/tmp" -Dcairn.test.cluster="$cluster" \
        -cp "$out/cairn-hadoop-$version.jar:$out/test-classes:$(cat "$out/classpath")" io.cairn.hadoop.contract.RunSuites "${@:2}"
}
case $mode in
    jar | tests | test) ;;
    run) run "$@" ;;
    *) printf 'hadoop: unknown word %s; there are jar, tests, test and run\n' "$mode" >&2; exit 2 ;;
esac

library=${CAIRN_JNI:-}
if [ -z "$library" ]; then
    "${CARGO:-cargo}" build --release --locked --package cairn-jni
    library=$target/release/libcairn_jni.so
fi

# The library's path in the jar has its version and hash: jars of several versions in one process do not get at each other's.
case $(uname -m) in
    x86_64) machine=linux-amd64 ;;
    aarch64) machine=linux-aarch64 ;;
    *) printf 'hadoop: no library is built for %s\n' "$(uname -m)" >&2; exit 3 ;;
esac
classes=$out/native/io/cairn/hadoop
rm -rf "$out/native"
mkdir -p "$classes"
strip --strip-debug -o "$classes/library.so" "$library"
hash=$(sha256sum "$classes/library.so" | cut -d' ' -f1)
path=native/$machine/$version-${hash:0:16}/libcairn_jni.so
mkdir -p "$classes/${path%/*}"
mv "$classes/library.so" "$classes/$path"
printf '%s.path=%s\n%s.sha256=%s\n' "$machine" "$path" "$machine" "$hash" >"$classes/native.properties"

maven=(mvn --batch-mode --quiet --file hadoop/pom.xml "-Dcairn.build=$out" "-Drevision=$version")
[ -z "${HADOOP_VERSION:-}" ] || maven+=("-Dhadoop.version=$HADOOP_VERSION")
if [ "$mode" = jar ]; then
    "${maven[@]}" package -Dmaven.test.skip=true
    ls -l "$out"/*.jar
    exit
fi
"${maven[@]}" package dependency:build-classpath "-Dmdep.outputFile=$out/classpath" -Dmdep.includeScope=test
[ "$mode" = tests ] || run "$@"
