//! Trees that are copied whole: rsync with checksums there and back, tar out and in, removal.
use super::Place;
use std::fs;
use std::path::Path;

/// A tree with what copies tend to lose: links, modes, times, holes, long names, empty things, extended attributes.
const TREE: &str = r#"
import os, random
random.seed(5)
os.makedirs("tree"); os.chdir("tree")
for d in range(40):
    name = "dir%d/sub/deep" % d
    os.makedirs(name)
    for f in range(60):
        path = "%s/file-%d" % (name if f % 3 else "dir%d" % d, f)
        with open(path, "wb") as out:
            out.write(random.randbytes(random.choice([0, 1, 100, 4096, 5000, 70000])))
        os.chmod(path, random.choice([0o644, 0o600, 0o755, 0o4755, 0o444]))
        os.utime(path, ns=(10**18 + f * 1234567, 10**18 + d * 7654321 + f))
    os.symlink("sub/../file-0", "dir%d/link" % d)
    os.symlink("nowhere", "dir%d/dangling" % d)
    os.link("dir%d/file-3" % d, "dir%d/hard" % d)
with open("sparse", "wb") as out:
    out.truncate(30_000_000); out.seek(20_000_000); out.write(b"in the middle")
with open("large", "wb") as out:
    for i in range(20): out.write(random.randbytes(1 << 20))
open("n" * 255, "w").close(); open("ümlaut \n newline", "w").close(); os.mkdir("empty"); os.mkfifo("fifo")
os.setxattr("large", "user.colour", b"blue"); os.chmod("empty", 0o1777)
for d in range(40): os.utime("dir%d" % d, ns=(10**18, 10**18 + d))
"#;

fn make(place: &Place) {
    let output = std::process::Command::new("python3").args(["-c", TREE]).current_dir(place.local.path()).output();
    let output = output.expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn count(dir: &Path) -> usize {
    fs::read_dir(dir).expect("list").count()
}

pub fn with_rsync(place: &mut Place) {
    make(place);
    place.sh(place.local.path(), "rsync -aHXS --checksum tree/ \"$DIR/tree/\"");
    let differs = |from: &str, to: &str| {
        place.sh(place.local.path(), &format!("rsync -aHXn --checksum --delete --itemize-changes {from} {to}"))
    };
    assert_eq!(differs("tree/", "\"$DIR/tree/\""), "", "the copy on the mount is not the tree");
    place.sh(place.local.path(), "rsync -aHXS --checksum \"$DIR/tree/\" back/");
    assert_eq!(differs("tree/", "back/"), "", "what came back is not the tree");
    // Changed in place, and by temporary files that are renamed.
    place.sh(place.local.path(), "for d in 1 2 3; do echo changed >> tree/dir$d/file-0; rm tree/dir$d/file-6; done");
    place.sh(place.local.path(), "rsync -aHX --inplace --delete tree/dir1/ \"$DIR/tree/dir1/\"");
    place.sh(place.local.path(), "rsync -aHX --delete tree/ \"$DIR/tree/\"");
    assert_eq!(differs("tree/", "\"$DIR/tree/\""), "", "an update is not what was changed");
    place.on_mount("rm -rf tree");
    assert_eq!(count(&place.dir), 0);
}

pub fn with_tar(place: &mut Place) {
    make(place);
    place.sh(place.local.path(), "tar --sparse --xattrs -cf tree.tar tree");
    place.on_mount("tar --xattrs -xpf \"$LOCAL/tree.tar\"");
    place.on_mount("tar --xattrs -df \"$LOCAL/tree.tar\"");
    place.on_mount("tar --sparse --xattrs -cf again.tar tree; cp again.tar \"$LOCAL\"");
    place.sh(place.local.path(), "mkdir back; tar --xattrs -C back -xpf again.tar; tar -df again.tar; diff -r --no-dereference tree back/tree 2>&1 | grep -v fifo | grep . && exit 1 || true");
    // Space that holes take is none.
    let blocks = place.on_mount("stat -c %b tree/sparse").trim().parse::<u64>().expect("a number");
    assert!(blocks * 512 < 1 << 20, "a file with one hole takes {blocks} blocks");
    place
        .on_mount("cp -a tree copy; diff -r --no-dereference tree copy 2>&1 | grep -v fifo | grep . && exit 1 || true");
    place.on_mount("rm -rf tree copy again.tar");
    assert_eq!(count(&place.dir), 0);
}
