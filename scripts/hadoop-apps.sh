#!/usr/bin/env bash
# Programs of Hadoop and Spark on a cluster, each compared with what it does on local files:
#   scripts/hadoop-apps.sh HOST:PORT [shell|oldest|distcp|hdfs|terasort|spark|hbase…]
# The jar has to be there (make hadoop), or CAIRN_HADOOP_OUT names the directory where it is. Says "hadoop apps: N done" at its end.
# ROWS: those of terasort, of 100 bytes each.
set -euo pipefail
cd "$(dirname "$0")/.."
cluster=${1:?hadoop-apps: name a cluster, HOST:PORT}
shift
apps=${*:-shell oldest distcp hdfs terasort spark hbase}
out=${CAIRN_HADOOP_OUT:-${CARGO_TARGET_DIR:-$PWD/target}/hadoop}
jar=$(ls "$out"/cairn-hadoop-*.jar)
rows=${ROWS:-200000}
dir=$(mktemp -d)
# Processes of this script.
ours=()
trap '[ ${#ours[@]} = 0 ] || kill -KILL "${ours[@]}" 2>/dev/null || true; rm -rf "$dir"' EXIT
base=cairn://$cluster/default/apps
cat >"$dir/log4j.properties" <<'EOF'
log4j.rootLogger=WARN,stderr
log4j.logger.org.apache.hadoop.util.NativeCodeLoader=ERROR
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%-5p %c{1}: %m%n
EOF

printf '<configuration/>\n' >"$dir/core-site.xml"

die() {
    printf 'hadoop-apps: %s\n' "$*" >&2
    exit 1
}
# An XML file of Hadoop's with NAME=VALUE….
properties() {
    local file=$1 property
    shift
    {
        printf '<configuration>\n'
        for property in "$@"; do printf '<property><name>%s</name><value>%s</value></property>\n' "${property%%=*}" "${property#*=}"; done
        printf '</configuration>\n'
    } >"$file"
}
classpath() {
    [ -s "$out/$1.classpath" ] ||
        mvn --batch-mode --quiet --file hadoop/apps/pom.xml "-P$1" dependency:build-classpath "-Dmdep.outputFile=$out/$1.classpath" >&2
    printf '%s:%s:%s' "$dir" "$jar" "$(cat "$out/$1.classpath")"
}
# Hadoop's tools, as its scripts start them; the job runner is the local one.
hadoop() {
    local class=$1
    shift
    java -Xmx1g -cp "$mapreduce" "$class" -D "hadoop.tmp.dir=$dir/tmp" "$@"
}
shell() { hadoop org.apache.hadoop.fs.FsShell "$@"; }
# Sums of all files below a local directory, by their paths in it.
sums() { (cd "$1" && find . -type f ! -name '.*.crc' ! -name '_*' -exec sha256sum {} + | sort -k 2); }

needs_tree() {
    mkdir -p "$dir/tree/sub"
    for number in 1 2 3; do
        head -c $((number * 700000)) /dev/urandom >"$dir/tree/file$number"
        printf 'line %s\n' "$number" >"$dir/tree/sub/small$number"
    done
    : >"$dir/tree/empty"
}

app_shell() {
    shell -mkdir -p "$base/shell"
    shell -put "$dir/tree" "$base/shell/"
    [ "$(shell -ls -R "$base/shell/tree" | grep -c '^-')" = 7 ] || die "ls -R shows other files"
    [ "$(shell -cat "$base/shell/tree/sub/small2")" = "line 2" ] || die "cat prints something else"
    shell -cp "$base/shell/tree/file1" "$base/shell/copy"
    shell -mv "$base/shell/copy" "$base/shell/moved"
    shell -appendToFile "$dir/tree/file2" "$base/shell/moved"
    shell -chmod 640 "$base/shell/moved"
    shell -setfattr -n user.note -v hello "$base/shell/moved"
    shell -getfattr -n user.note "$base/shell/moved" | grep -q hello || die "the attribute is not there"
    shell -setfacl -m user:daemon:r-- "$base/shell/moved"
    shell -getfacl "$base/shell/moved" | grep -q '^user:daemon:r--' || die "the ACL is not there"
    shell -stat '%a %b' "$base/shell/moved" | grep -q '^640 2100000$' || die "stat shows $(shell -stat '%a %b' "$base/shell/moved")"
    shell -truncate 700000 "$base/shell/moved"
    shell -get "$base/shell/moved" "$dir/moved"
    cmp "$dir/moved" "$dir/tree/file1" || die "what came back is not what was put"
    shell -count "$base/shell/tree" | grep -q '2  *7 ' || die "count shows $(shell -count "$base/shell/tree")"
    shell -D fs.trash.interval=60 -rm "$base/shell/moved"
    shell -ls -R "cairn://$cluster/default/user" | grep -q '/.Trash/.*moved' || die "it did not go to the trash"
    if shell -cat "$base/shell/moved" 2>"$dir/error"; then die "it is still there"; fi
    grep -q 'No such file' "$dir/error" || die "the error says $(cat "$dir/error")"
    shell -df -h "cairn://$cluster/default" >/dev/null
}

# On the oldest Hadoop that the jar is for, which lacks some of the classes that it was compiled with.
app_oldest() {
    local mapreduce
    mapreduce=$(classpath oldest)
    shell -mkdir -p "$base/oldest"
    shell -put "$dir/tree" "$base/oldest/"
    shell -appendToFile "$dir/tree/file1" "$base/oldest/tree/file2"
    shell -checksum "$base/oldest/tree/file2"
    shell -ls -R "$base/oldest" | grep -q '2100000 .*/file2' || die "ls -R shows another size"
    shell -get "$base/oldest/tree/file2" "$dir/oldest"
    cmp "$dir/oldest" <(cat "$dir/tree/file2" "$dir/tree/file1") || die "what came back is not what was put"
}

app_distcp() {
    # Both sides are asked for one sum of all bytes, so that they compare.
    local distcp=(org.apache.hadoop.tools.DistCp -D dfs.checksum.combine.mode=COMPOSITE_CRC -D mapreduce.framework.name=local)
    hadoop "${distcp[@]}" "file://$dir/tree" "$base/distcp"
    hadoop "${distcp[@]}" "$base/distcp" "$base/distcp2"
    hadoop "${distcp[@]}" "$base/distcp2" "file://$dir/back"
    diff <(sums "$dir/tree") <(sums "$dir/back") || die "distcp changed something"
    # What is the same is not copied again; what differs is found by its sum.
    head -c 700000 /dev/urandom >"$dir/other"
    shell -put -f "$dir/other" "$base/distcp2/file1"
    hadoop "${distcp[@]}" -update "$base/distcp" "$base/distcp2"
    shell -get "$base/distcp2/file1" "$dir/again"
    cmp "$dir/again" "$dir/tree/file1" || die "distcp -update did not see other bytes of the same length"
}

# An HDFS of one NameNode and one DataNode: trees go there and back, and the sums of both sides are compared, file by file.
app_hdfs() {
    local home=$dir/hdfs hdfs ports server sums=(-D dfs.checksum.combine.mode=COMPOSITE_CRC) name
    hdfs=$(classpath hdfs)
    # The jars of Maven lack the pages of their HTTP servers, which look for them.
    mkdir -p "$home/conf/webapps/hdfs" "$home/conf/webapps/datanode"
    cp "$dir/log4j.properties" "$home/conf/"
    read -r -a ports < <(python3 -c 'import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
print(*[s.getsockname()[1] for s in held])')
    properties "$home/conf/core-site.xml" fs.defaultFS="hdfs://127.0.0.1:${ports[0]}" hadoop.tmp.dir="$home/tmp"
    properties "$home/conf/hdfs-site.xml" dfs.namenode.http-address="127.0.0.1:${ports[1]}" dfs.namenode.name.dir="file://$home/name" \
        dfs.replication=1 dfs.namenode.safemode.extension=0 dfs.namenode.fs-limits.min-block-size=1048576 dfs.blocksize=1048576 \
        dfs.datanode.data.dir="file://$home/disk" dfs.datanode.address="127.0.0.1:${ports[2]}" \
        dfs.datanode.http.address="127.0.0.1:${ports[3]}" dfs.datanode.ipc.address="127.0.0.1:${ports[4]}"
    server() { java -Xmx512m "-Dhadoop.home.dir=$home" -cp "$home/conf:$hdfs" "org.apache.hadoop.hdfs.$@"; }
    server server.namenode.NameNode -format -nonInteractive >"$home/format.log" 2>&1 || die "hdfs: $(tail -n 20 "$home/format.log")"
    for name in namenode.NameNode datanode.DataNode; do
        java -Xmx512m "-Dhadoop.home.dir=$home" -cp "$home/conf:$hdfs" "org.apache.hadoop.hdfs.server.$name" >"$home/$name.log" 2>&1 &
        ours+=($!)
        disown
    done
    for _ in $(seq 60); do
        server tools.DFSAdmin -report 2>/dev/null | grep -q 'Live datanodes (1)' && break
        sleep 1
    done
    local there=hdfs://127.0.0.1:${ports[0]}/tree
    local distcp=(org.apache.hadoop.tools.DistCp "${sums[@]}" -D mapreduce.framework.name=local)
    # One sum of what: the file's blocks are of 1 MiB there, and of another size here.
    of() { shell "${sums[@]}" -checksum "$1/file1" "$1/file2" "$1/file3" "$1/empty" "$1/sub/small1" | sed 's,^.*/,,'; }
    shell -D dfs.blocksize=1048576 -D dfs.replication=1 -put "$dir/tree" "$there" || die "hdfs: $(tail -n 20 "$home"/*.log)"
    hadoop "${distcp[@]}" "$there" "$base/from-hdfs"
    diff <(of "$there") <(of "$base/from-hdfs") || die "the sums of HDFS and Cairn differ"
    [ "$(of "$base/from-hdfs" | grep -c 'COMPOSITE-CRC32C')" = 4 ] || die "sums are missing: $(of "$base/from-hdfs")"
    # What differs in a byte is found by its sum and copied, and nothing else is: not even the empty file.
    { printf x; tail -c +2 "$dir/tree/file2"; } >"$dir/differs"
    cmp -s "$dir/differs" "$dir/tree/file2" && printf y | dd of="$dir/differs" conv=notrunc status=none
    shell -put -f "$dir/differs" "$base/from-hdfs/file2"
    changed() { shell -stat %Y "$base/from-hdfs/empty" "$base/from-hdfs/file1"; }
    local before
    before=$(changed)
    hadoop "${distcp[@]}" -update "$there" "$base/from-hdfs"
    [ "$before" = "$(changed)" ] || die "distcp -update copied what was the same"
    diff <(of "$there") <(of "$base/from-hdfs") || die "distcp -update left other bytes"
    hadoop "${distcp[@]}" -D dfs.blocksize=1048576 -D dfs.replication=1 "$base/from-hdfs" "${there%/tree}/back"
    diff <(of "$there") <(of "${there%/tree}/back") || die "what came back to HDFS has other sums"
    shell -get "${there%/tree}/back" "$dir/from-hdfs"
    diff <(sums "$dir/tree") <(sums "$dir/from-hdfs") || die "what came back by HDFS has other bytes"
}

app_terasort() {
    local options=(-D mapreduce.framework.name=local -D mapreduce.job.reduces=2)
    local examples=org.apache.hadoop.examples.terasort
    hadoop "$examples.TeraGen" "${options[@]}" -D mapreduce.job.maps=4 "$rows" "$base/tera/in"
    hadoop "$examples.TeraSort" "${options[@]}" "$base/tera/in" "$base/tera/out"
    hadoop "$examples.TeraValidate" "${options[@]}" "$base/tera/out" "$base/tera/report"
    shell -cat "$base/tera/report/part-r-*" >"$dir/report"
    grep -q '^checksum' "$dir/report" && ! grep -qi 'error\|misorder' "$dir/report" || die "teravalidate: $(cat "$dir/report")"
}

app_spark() {
    local spark opens=()
    spark=$(classpath spark)
    for package in java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent \
        java.util.concurrent.atomic sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar; do
        opens+=("--add-opens=java.base/$package=ALL-UNNAMED")
    done
    cp hadoop/apps/SparkJob.java "$dir/"
    mkdir "$dir/job"
    javac -nowarn -cp "$spark" -d "$dir/job" "$dir/SparkJob.java"
    java -Xmx2g "${opens[@]}" -Dspark.master='local[2]' -Dspark.ui.enabled=false "-Dspark.local.dir=$dir" \
        "-Dspark.sql.warehouse.dir=$dir/warehouse" -cp "$dir/job:$spark" SparkJob "$base/spark" >"$dir/spark.log" 2>&1 ||
        die "spark: $(tail -n 40 "$dir/spark.log")"
    grep '^spark: ' "$dir/spark.log"
}

# A master, two region servers and their ZooKeeper, with tables and logs on the cluster; one region server is killed while rows are put.
app_hbase() {
    local hbase home=$dir/hbase port opens=() program
    local -A started=()
    hbase=$(classpath hbase)
    mkdir -p "$home/job" "$home/conf"
    port=$(python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
    cp "$dir/log4j.properties" "$home/conf/"
    properties "$home/conf/hbase-site.xml" hbase.rootdir="$base/hbase" fs.defaultFS="cairn://$cluster/" hbase.cluster.distributed=true \
        hbase.zookeeper.quorum=127.0.0.1 hbase.zookeeper.property.clientPort="$port" hbase.zookeeper.property.dataDir="$home/zookeeper" \
        hbase.zookeeper.property.admin.enableServer=false zookeeper.session.timeout=8000 hbase.wal.provider=filesystem hbase.tmp.dir="$home/tmp" \
        hbase.master.port=0 hbase.regionserver.port=0 hbase.master.info.port=-1 hbase.regionserver.info.port=-1 \
        hbase.master.ipc.address=127.0.0.1 hbase.regionserver.ipc.address=127.0.0.1 hbase.master.hostname=localhost hbase.regionserver.hostname=localhost \
        hbase.master.wait.on.regionservers.mintostart=2 hbase.client.retries.number=30 hbase.rpc.timeout=20000 hbase.client.operation.timeout=180000
    for package in java.lang java.lang.reflect java.io java.nio java.util java.util.concurrent sun.nio.ch jdk.internal.ref; do
        opens+=("--add-opens=java.base/$package=ALL-UNNAMED")
    done
    opens+=(--add-exports=java.base/jdk.internal.misc=ALL-UNNAMED -cp "$home/conf:$home/job:$hbase")
    javac -nowarn -cp "$hbase" -d "$home/job" hadoop/apps/HbaseJob.java
    hbase_start() {
        java -Xmx512m "${opens[@]}" "${@:2}" >"$home/$1.log" 2>&1 &
        started[$1]=$!
        ours+=($!)
        # Bash says nothing of its end.
        [ "$1" = job ] || disown
    }
    hbase_start zookeeper org.apache.hadoop.hbase.zookeeper.HQuorumPeer start
    hbase_start master org.apache.hadoop.hbase.master.HMaster start
    hbase_start region1 org.apache.hadoop.hbase.regionserver.HRegionServer start
    hbase_start region2 org.apache.hadoop.hbase.regionserver.HRegionServer start
    hbase_start job HbaseJob "$rows"
    for _ in $(seq 600); do
        [ "$(grep -c '^put' "$home/job.log")" -ge $((rows / 2000)) ] && break
        kill -0 "${started[job]}" 2>/dev/null || die "hbase: $(tail -n 30 "$home"/*.log)"
        sleep 0.5
    done
    kill -0 "${started[job]}" || die "hbase: the rows were there before a region server was killed: $(tail -n 30 "$home"/*.log)"
    kill -KILL "${started[region1]}"
    wait "${started[job]}" || die "hbase: $(tail -n 30 "$home"/*.log)"
    grep '^hbase: ' "$home/job.log"
    for program in "${!started[@]}"; do kill -KILL "${started[$program]}" 2>/dev/null || true; done
}

needs_tree
mapreduce=$(classpath mapreduce)
shell -rm -r -f -skipTrash "$base"
count=0
for app in $apps; do
    began=$SECONDS
    "app_$app"
    printf '%s: done in %s s\n' "$app" $((SECONDS - began))
    count=$((count + 1))
done
shell -rm -r -f -skipTrash "$base"
printf 'hadoop apps: %s done\n' "$count"
