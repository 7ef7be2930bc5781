//! The Hadoop file system against clusters of real processes: Hadoop's own contract suites, the guide, threads and
//! errors.
//!
//! Where there is no Java or no Maven, or Maven gets no packages, the tests say that they are skipped.
use crate::bindings::{SMALL, bash, blocks, root, run_within};
use crate::disturb::{WITH_SPARE, disturb};
use crate::secure::{file, give_keys};
use crate::support::{Cluster, text};
use cairn_client::key::KEY_VARIABLE;
use cairn_security::{Authority, Wanted, write_secret};
use cairn_types::NodeId;
use cairn_wire::audience::Caller;
use cairn_wire::rights::Rights;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Maven may have to fetch 90 packages, and Java runs 30 suites.
const LONG: Duration = Duration::from_secs(900);
/// 100 MB, of which three copies are written twice.
const ROWS_UNDER_KILLS: usize = 1_000_000;
/// Methods of Hadoop's suites that pass, at least. Those that an option excludes are listed in `hadoop/src/test`.
const PASSED_MIN: usize = 587;
/// Methods of `Tokens` where there is a key; one is for where there is none.
const TOKENS_PASSED: usize = 4;
/// Less than a lease.
const ENDED_WITHIN: Duration = Duration::from_secs(10);

/// Where cargo put the native library that this test program was built with.
fn library() -> PathBuf {
    crate::bindings::library().with_file_name("libcairn_jni.so")
}

fn is_there(program: &str, version: &str) -> bool {
    let there = Command::new(program).arg(version).output().is_ok_and(|output| output.status.success());
    if !there {
        println!("skipped: there is no {program}");
    }
    there
}

/// Where the jar is built, beside what cargo built of this.
fn out() -> PathBuf {
    library().parent().and_then(Path::parent).expect("a directory").join("hadoop-test")
}

/// `scripts/hadoop.sh` with the library under test.
fn script(arguments: &[&str]) -> Output {
    script_with(arguments, &[])
}

/// The same with keys in files that variables name, or none.
fn script_with(arguments: &[&str], keys: &[(&str, PathBuf)]) -> Output {
    let mut command = Command::new(root().join("scripts/hadoop.sh"));
    command.args(arguments).env("CAIRN_JNI", library()).env("CAIRN_HADOOP_OUT", out()).current_dir(root());
    command.env_remove(KEY_VARIABLE).envs(keys.iter().map(|(variable, path)| (variable, path)));
    run_within(&mut command, LONG)
}

/// Builds the jar and the suites, once. False: a program is not there, or packages cannot be had.
fn is_built() -> bool {
    static BUILT: OnceLock<bool> = OnceLock::new();
    *BUILT.get_or_init(|| {
        if !is_there("javac", "-version") || !is_there("mvn", "--version") {
            return false;
        }
        let output = script(&["tests"]);
        let said = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
        if output.status.success() {
            return true;
        }
        let no_packages = ["Could not transfer", "Unknown host", "Could not find artifact", "in offline mode"];
        assert!(no_packages.iter().any(|part| said.contains(part)), "{said}");
        println!("skipped: Maven gets no packages: {said}");
        false
    })
}

/// A program for Hadoop would find a file system that behaves like no other: all suites that hadoop-common has for file
/// systems, and ours, out of the jar as it is shipped.
#[test]
fn the_jar_passes_the_suites_of_hadoop() {
    if !is_built() {
        return;
    }
    let cluster = Cluster::start(SMALL);
    let before = open(&cluster);
    let output = script(&["run", &cluster.address]);
    let said = text(&output.stdout);
    let sum = said.lines().find(|line| line.starts_with("suites: ")).unwrap_or_default();
    let passed = sum.split(", ").nth(1).and_then(|part| part.split(' ').next()?.parse::<usize>().ok());
    assert!(output.status.success() && passed >= Some(PASSED_MIN), "{said}\n{}", text(&output.stderr));
    println!("{sum}");
    let fsck = cluster.ok(&["admin", "fsck"]);
    assert!(!fsck.contains("wrong"), "{fsck}");
    // What was open was closed and sessions were ended by who had them: before their leases are over.
    let began = Instant::now();
    while open(&cluster).iter().zip(&before).any(|(now, before)| now > before) {
        assert!(began.elapsed() < ENDED_WITHIN, "sessions and holds were {before:?}, are {:?}", open(&cluster));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Sessions that have a lease, and files that they hold open.
fn open(cluster: &Cluster) -> [f64; 2] {
    ["cairn_meta_sessions_leased", "cairn_meta_holds"].map(|name| cluster.metric("meta1", name).expect("the metric"))
}

/// Tasks of a job would be strangers to a cluster that requires keys, or a key would be shown to whoever reads a log.
#[test]
fn jobs_bring_the_key_of_who_submits_them() {
    if !is_built() {
        return;
    }
    let mut cluster = Cluster::prepare(SMALL);
    give_keys(&mut cluster);
    cluster.key = Some(file(&cluster, "alice"));
    cluster.start_all();
    cluster.wait_volume();
    let authority = Authority::open(&cluster.path("authority")).expect("the authority");
    let (name, rights) = ("job-1".to_owned(), Rights::everything());
    let wanted = Wanted { name, caller: Caller::Client, node: NodeId(0), life: 0, rights, again: false };
    let ended = authority.issue(&wanted).expect("a key");
    write_secret(&file(&cluster, "ended"), &ended, false).expect("written");
    let keys = [(KEY_VARIABLE, "alice"), ("CAIRN_TEST_ENDED_KEY", "ended"), ("CAIRN_TEST_ADMIN_KEY", "ops")];
    let keys = keys.map(|(variable, name)| (variable, file(&cluster, name)));
    let output = script_with(&["run", &cluster.address, "Tokens"], &keys);
    let said = text(&output.stdout);
    let whole = format!("suites: 1, {TOKENS_PASSED} passed, 0 failed, 1 skipped");
    assert!(output.status.success() && said.contains(&whole), "{said}\n{}", text(&output.stderr));
    cluster.check_logs();
}

/// A reader who copies the commands and the program of the guide gets something that does not compile or work.
#[test]
fn the_guide_for_hadoop_works_as_it_is_written() {
    if !is_built() {
        return;
    }
    let page = fs::read_to_string(root().join("docs/guides/hadoop.md")).expect("page");
    let jar = format!("cairn-hadoop-{}.jar", env!("CARGO_PKG_VERSION"));
    let name_jar = format!("export HADOOP_CLASSPATH=\"$PWD/target/hadoop/{jar}\"");
    let given = ["make hadoop", &name_jar, "export CAIRN_CLUSTER=127.0.0.1:7400"];
    let all = blocks(&page, "sh").concat();
    for line in given {
        assert!(all.lines().any(|other| other == line), "{line:?} is no longer on the page");
    }
    let commands: String = all.lines().filter(|line| !given.contains(line)).map(|line| format!("{line}\n")).collect();
    let programs = blocks(&page, "java");
    assert_eq!(programs.len(), 1, "the guide has one program");
    let cluster = Cluster::start(SMALL);
    fs::write(cluster.path("Hello.java"), &programs[0]).expect("program");
    // What of a Hadoop's `bin` the guide uses.
    let (bin, jar) = (cluster.path("bin"), out().join(jar));
    fs::create_dir(&bin).expect("directory");
    fs::write(bin.join("core-site.xml"), "<configuration/>").expect("configuration");
    let path = format!("{}:{}:{}", bin.display(), jar.display(), out().join("classpath").display());
    let (path, packages) = path.rsplit_once(':').expect("three parts");
    let hadoop = format!(
        "#!/bin/sh\npath=\"{path}:$(cat {packages})\"\ncase $1 in classpath) echo \"$path\" ;; fs) shift\n\
         exec java -cp \"$path\" org.apache.hadoop.fs.FsShell \"$@\" ;; esac\n"
    );
    fs::write(bin.join("hadoop"), hadoop).expect("script");
    fs::set_permissions(bin.join("hadoop"), fs::Permissions::from_mode(0o755)).expect("mode");
    let output = bash(&format!("PATH=\"{}:$PATH\"\n{commands}", bin.display()), &cluster, &bin);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{error}");
    let expected = ["default/hello/hello.txt", "second line", "hello.txt 13", "log.txt 23", "/default/hello/missing: "];
    assert!(expected.iter().all(|part| out.contains(part)), "{out}\n{error}");
    assert_eq!(out.matches("hello, cairn\n").count(), 2, "{out}");
}

/// A job of Hadoop or Spark would end with other data than on HDFS: the shell, distcp there and back and between
/// HDFS and Cairn with their sums compared, terasort, parquet
/// by Spark, HBase with a region server that is killed.
#[test]
fn applications() {
    let wanted = std::env::var("CAIRN_TEST_APPS").unwrap_or_default();
    if !wanted.split(',').any(|name| name == "hadoop") {
        return eprintln!("not run: programs of Hadoop and Spark; make test-apps runs them");
    }
    assert!(is_built(), "Java, Maven and their packages are needed");
    let cluster = Cluster::start(SMALL);
    println!("{}", apps(&cluster.address, &[], 0, 7));
    println!("under kills: {}", terasort_under_kills());
}

/// `scripts/hadoop-apps.sh`, some of its applications or all; what it printed. `rows` of terasort, unless 0.
fn apps(cluster: &str, names: &[&str], rows: usize, count: usize) -> String {
    let mut command = Command::new(root().join("scripts/hadoop-apps.sh"));
    command.arg(cluster).args(names).env("CAIRN_HADOOP_OUT", out()).current_dir(root());
    if rows > 0 {
        command.env("ROWS", rows.to_string());
    }
    let output = run_within(&mut command, LONG * 2);
    let said = text(&output.stdout);
    let done = format!("hadoop apps: {count} done");
    assert!(output.status.success() && said.contains(&done), "{said}\n{}", text(&output.stderr));
    said
}

/// Bytes that are stored between two things that are done to the servers, unless the job takes so long in between for
/// something else.
const BETWEEN: u64 = 8 << 20;
const BETWEEN_MAX: Duration = Duration::from_secs(15);

/// teragen, terasort and teravalidate while a data node and the leader of the metadata are killed and started again,
/// for as long as the job goes on. teravalidate says whether all rows are there, in order.
fn terasort_under_kills() -> String {
    let mut cluster = Cluster::start(WITH_SPARE);
    let address = cluster.address.clone();
    std::thread::scope(|scope| {
        let job = scope.spawn(|| apps(&address, &["terasort"], ROWS_UNDER_KILLS, 1));
        let mut at_work = 0;
        let mut goes_on = |cluster: &Cluster| {
            let (began, stored) = (Instant::now(), cluster.stored());
            while !job.is_finished() && cluster.stored() < stored + BETWEEN && began.elapsed() < BETWEEN_MAX {
                std::thread::sleep(Duration::from_millis(50));
            }
            at_work += usize::from(!job.is_finished());
        };
        goes_on(&cluster);
        while !job.is_finished() {
            disturb(&mut cluster, &mut goes_on);
        }
        let said = job.join().expect("the job ends right");
        assert!(at_work >= 5, "the job was over when servers were killed: {at_work} times it was not; {said}");
        let fsck = cluster.ok(&["admin", "fsck"]);
        assert!(!fsck.contains("wrong"), "{fsck}");
        format!(
            "{}, {} servers killed",
            said.lines().find(|line| line.starts_with("terasort")).unwrap_or_default(),
            cluster.kills
        )
    })
}
