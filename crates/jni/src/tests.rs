//! The native methods that Java declares are those that are here.
use cairn_types::ErrorCode;

const JAVA: &str = include_str!("../../../hadoop/src/main/java/io/cairn/hadoop/Native.java");
const SOURCES: [&str; 8] = [
    include_str!("border.rs"),
    include_str!("copies.rs"),
    include_str!("file.rs"),
    include_str!("key.rs"),
    include_str!("names.rs"),
    include_str!("tree.rs"),
    include_str!("volume.rs"),
    include_str!("xattr.rs"),
];

/// Types as Java and as Rust name them.
const TYPES: [(&str, &str); 6] = [
    ("int", "jint"),
    ("long", "jlong"),
    ("boolean", "u8"),
    ("byte[]", "jbyteArray"),
    ("ByteBuffer", "jobject"),
    ("", ""),
];

fn rust_type(java: &str) -> &'static str {
    TYPES.iter().find(|(name, _)| *name == java).unwrap_or_else(|| panic!("{java} is not in the table of types")).1
}

/// "name(types) type", sorted.
fn declared() -> Vec<String> {
    let methods = JAVA.split("static native ").skip(1).map(|part| part.split_once(';').expect("an end").0);
    let mut all: Vec<String> = methods
        .map(|method| {
            let (head, arguments) = method.split_once('(').expect("arguments");
            let (answer, name) = head.split_once(' ').expect("a type");
            let arguments = arguments.trim_end_matches(')').split(',').map(str::trim);
            let types: Vec<&str> =
                arguments.map(|one| rust_type(one.rsplit_once(' ').map_or("", |(kind, _)| kind))).collect();
            format!("{name}({}) {}", types.join(", "), rust_type(answer))
        })
        .collect();
    all.sort();
    all
}

fn exported() -> Vec<String> {
    let parts = SOURCES.iter().flat_map(|source| source.split("fn Java_io_cairn_hadoop_Native_").skip(1));
    let mut all: Vec<String> = parts
        .map(|part| {
            let head = part.split_once(" {").expect("a body").0;
            let (name, rest) = head.split_once('(').expect("arguments");
            let (arguments, answer) = rest.rsplit_once(')').expect("an end");
            let types: Vec<&str> = arguments
                .split(',')
                .filter_map(|one| one.trim().split_once(": ").map(|(_, kind)| kind))
                .filter(|kind| !matches!(*kind, "*mut JNIEnv" | "jclass"))
                .collect();
            format!("{name}({}) {}", types.join(", "), answer.trim().trim_start_matches("-> "))
        })
        .collect();
    all.sort();
    all
}

/// Java would call a function with other arguments than it has, or find none when it is first used.
#[test]
fn java_declares_what_is_exported() {
    assert_eq!(declared(), exported());
    assert!(exported().len() > 25, "{:?}", exported());
}

/// The class of each errno, as `Errors.java` has it; 0: all others.
fn exceptions() -> Vec<(i32, String)> {
    let java = include_str!("../../../hadoop/src/main/java/io/cairn/hadoop/Errors.java");
    let numbers: Vec<(&str, i32)> = java
        .lines()
        .filter_map(|line| line.trim().strip_prefix("static final int ")?.strip_suffix(';')?.split_once(" = "))
        .map(|(name, number)| (name, number.parse().expect("a number")))
        .collect();
    let body =
        java.split_once("switch (errno) {").expect("a switch").1.split_once("private Errors()").expect("an end").0;
    let (mut all, mut open) = (Vec::new(), Vec::new());
    for line in body.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("case ").and_then(|rest| rest.strip_suffix(':')) {
            open.push(numbers.iter().find(|(known, _)| *known == name).expect("it is declared").1);
        } else if line == "default:" {
            open.push(0);
        } else if let Some((_, made)) = line.split_once("new ").filter(|_| !open.is_empty()) {
            let class = made.split_once('(').expect("a call").0;
            all.extend(open.drain(..).map(|errno| (errno, class.to_owned())));
        }
    }
    all
}

/// Whoever writes a program by the table of errors would catch exceptions that are never thrown.
#[test]
fn the_table_of_errors_names_what_java_throws() {
    let all = exceptions();
    assert!(all.len() > 8, "{all:?}");
    let class = |errno: i32| all.iter().find(|(known, _)| *known == errno).map(|(_, class)| class.as_str());
    for code in ErrorCode::ALL {
        let errno = match code.errno() {
            // As the layers between have it: what a path leads to is gone, and what is tried again or late is an error.
            libc::ESTALE => libc::ENOENT,
            libc::EAGAIN | libc::ETIMEDOUT => libc::EIO,
            errno => errno,
        };
        let thrown = class(errno).or(class(0)).expect("there is a default");
        let (_, named) = code.hadoop().rsplit_once('.').expect("a package");
        assert_eq!(named, thrown, "{code}");
    }
}
