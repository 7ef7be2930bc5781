//! The header and the functions are the same; panics and wrong pointers are errors.
use crate::border::{cairn_last_error, done};
use crate::layout::{CDirent, CHost, COptions, CPlace, CSpace, CStat};
use crate::{dir, file, volume, xattr};
use std::ffi::CStr;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::{null, null_mut};

const HEADER: &str = include_str!("../include/cairn.h");
const SOURCES: [&str; 5] = [
    include_str!("border.rs"),
    include_str!("volume.rs"),
    include_str!("xattr.rs"),
    include_str!("file.rs"),
    include_str!("dir.rs"),
];

/// Types of arguments and answers: Rust, C.
const TYPES: [(&str, &str); 27] = [
    ("*const c_char", "const char *"),
    ("*mut c_char", "char *"),
    ("*const c_void", "const void *"),
    ("*mut c_void", "void *"),
    ("*const COptions", "const struct cairn_options *"),
    ("*mut CStat", "struct cairn_stat *"),
    ("*mut CSpace", "struct cairn_space *"),
    ("*mut CDirent", "struct cairn_dirent *"),
    ("*mut CPlace", "struct cairn_place *"),
    ("*mut ssize_t", "ssize_t *"),
    ("*mut *mut CVolume", "cairn_volume **"),
    ("*mut *mut CFile", "cairn_file **"),
    ("*mut *mut CDir", "cairn_dir **"),
    ("*mut CVolume", "cairn_volume *"),
    ("*mut CFile", "cairn_file *"),
    ("*mut CDir", "cairn_dir *"),
    ("c_int", "int "),
    ("c_uint", "unsigned int "),
    ("size_t", "size_t "),
    ("ssize_t", "ssize_t "),
    ("mode_t", "mode_t "),
    ("uid_t", "uid_t "),
    ("gid_t", "gid_t "),
    ("u64", "uint64_t "),
    ("i64", "int64_t "),
    ("u32", "uint32_t "),
    ("", ""),
];

fn c_type(rust: &str) -> &'static str {
    let rust = rust.trim();
    let found = TYPES.iter().find(|(name, _)| *name == rust);
    found.unwrap_or_else(|| panic!("{rust} is not in the table of types")).1
}

/// All functions that C sees, as prototypes.
fn prototypes() -> Vec<String> {
    let mut all = Vec::new();
    for source in SOURCES {
        for part in source.split("extern \"C\" fn ").skip(1) {
            let (name, rest) = part.split_once('(').expect("arguments");
            let (arguments, rest) = rest.split_once(')').expect("an end of them");
            let (answer, _) = rest.split_once('{').expect("a body");
            let answer = c_type(answer.trim().strip_prefix("->").unwrap_or_default());
            let arguments = arguments.split(',').map(str::trim).filter(|argument| !argument.is_empty());
            let arguments = arguments.map(|argument| {
                let (name, of_type) = argument.split_once(':').expect("a type");
                format!("{}{}", c_type(of_type), name.trim())
            });
            let arguments = arguments.collect::<Vec<_>>().join(", ");
            let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments };
            all.push(format!("{answer}{name}({arguments});"));
        }
    }
    all
}

/// A program would call a function with other arguments than it has, or not find it.
#[test]
fn the_header_has_all_functions_and_no_others() {
    let in_source = prototypes();
    for prototype in &in_source {
        assert!(HEADER.lines().any(|line| line == prototype), "cairn.h lacks: {prototype}");
    }
    let in_header = HEADER.lines().filter(|line| line.contains(" cairn_") || line.contains("*cairn_"));
    let in_header = in_header.filter(|line| line.ends_with(");") && !line.starts_with([' ', '/']));
    assert_eq!(in_header.count(), in_source.len(), "cairn.h has what the library has not");
    assert!(in_source.len() > 35, "the sources are read: {in_source:?}");
}

/// Where a structure's fields are for C: a program that prints it.
fn layout_of(name: &str, fields: &[&str]) -> Vec<usize> {
    let dir = std::env::temp_dir().join(format!("cairn-header-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let offsets: String = fields.iter().map(|f| format!("printf(\"%zu \", offsetof(struct {name}, {f}));")).collect();
    let program = format!(
        "#include <cairn.h>\n#include <stdio.h>\nint main(void) {{ {offsets} printf(\"%zu\", sizeof(struct {name})); return 0; }}"
    );
    let (source, binary): (PathBuf, PathBuf) = (dir.join("layout.c"), dir.join("layout"));
    std::fs::write(&source, program).expect("a program");
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]).arg(include).arg("-o").arg(&binary);
    let built = compiler.arg(&source).output().expect("a C compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let printed = Command::new(&binary).output().expect("it runs").stdout;
    std::fs::remove_dir_all(&dir).expect("removed");
    String::from_utf8_lossy(&printed).split_whitespace().map(|number| number.parse().expect("a number")).collect()
}

macro_rules! same_layout {
    ($name:literal, $rust:ty, $($field:ident as $in_c:literal),+) => {
        let ours = [$(offset_of!($rust, $field)),+, size_of::<$rust>()];
        assert_eq!(layout_of($name, &[$($in_c),+]), ours, $name);
    };
}

/// A field would be read where another one is.
#[test]
fn structures_are_the_same_for_c() {
    same_layout!("cairn_options", COptions, size as "size", flags as "flags", timeout_ms as "timeout_ms",
        connect_timeout_ms as "connect_timeout_ms", reserved as "reserved", memory_max as "memory_max", rack as "rack");
    same_layout!("cairn_stat", CStat, ino as "ino", size as "size", blocks as "blocks", version as "version",
        atime_ns as "atime_ns", mtime_ns as "mtime_ns", ctime_ns as "ctime_ns", btime_ns as "btime_ns",
        mode as "mode", nlink as "nlink", uid as "uid", gid as "gid");
    same_layout!("cairn_dirent", CDirent, stat as "stat", ino as "ino", r#type as "type", has_stat as "has_stat",
        name as "name");
    same_layout!("cairn_space", CSpace, bytes as "bytes", bytes_free as "bytes_free", files as "files",
        files_free as "files_free");
    same_layout!("cairn_host", CHost, name as "name", address as "address", rack as "rack");
    same_layout!("cairn_place", CPlace, offset as "offset", length as "length", host_count as "host_count",
        reserved as "reserved", hosts as "hosts");
}

fn last_error() -> String {
    // SAFETY: the text is valid until the next call of this thread.
    unsafe { CStr::from_ptr(cairn_last_error()) }.to_string_lossy().into_owned()
}

/// A defect would unwind into C, which is undefined, or be told without a word.
#[test]
fn a_panic_is_an_error_with_a_text() {
    assert_eq!(done(|| panic!("on {}", "purpose")), -libc::EIO);
    assert!(last_error().contains("on purpose"), "{}", last_error());
}

/// A program that is wrong would crash instead of being told.
#[test]
fn wrong_arguments_are_refused() {
    // SAFETY: null is what is tested; the options are long enough to have their size read.
    unsafe {
        assert_eq!(volume::cairn_stat(null_mut(), c"/".as_ptr(), null_mut()), -libc::EINVAL);
        assert!(last_error().starts_with("cairn_volume: the pointer is NULL; "), "{}", last_error());
        assert_eq!(file::cairn_close(null_mut()), -libc::EINVAL);
        assert_eq!(dir::cairn_readdir(null_mut(), null_mut()), -libc::EINVAL);
        assert_eq!(xattr::cairn_listxattr(null_mut(), null(), null_mut(), 0), -(libc::EINVAL as isize));
        assert_eq!(volume::cairn_connect(null(), null(), null(), null_mut()), -libc::EINVAL);
        let size = size_of::<COptions>() as u64;
        let good =
            COptions { size, flags: 0, timeout_ms: 0, connect_timeout_ms: 0, reserved: 0, memory_max: 0, rack: null() };
        let mut connected = null_mut();
        for (bad, told) in [(COptions { size: size + 8, ..good }, "size"), (COptions { flags: 4, ..good }, "flag")] {
            assert_eq!(volume::cairn_connect(null(), null(), &bad, &mut connected), -libc::EINVAL);
            assert!(connected.is_null() && last_error().contains(told), "{}", last_error());
        }
        let none = c"127.0.0.1".as_ptr();
        assert_eq!(volume::cairn_connect(none, null(), &good, &mut connected), -libc::EINVAL);
        assert!(last_error().contains("is no host:port; name the managers"), "{}", last_error());
    }
}
