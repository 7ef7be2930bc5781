//! git: commits, branches, clones, checkouts, garbage collection; every object is checked, and the history has the same
//! hash as on a local disk.
use super::Place;

const SETUP: &str = r##"
export GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a
export GIT_COMMITTER_EMAIL=a@example.org GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
"##;

/// Makes a repository with some history in ./repo and prints the hash of its end.
const MAKE: &str = r##"
git init -q -b main repo; cd repo
for round in 1 2 3 4 5 6; do
    for dir in one two/deep two/deeper three; do
        mkdir -p $dir
        for file in 1 2 3 4 5 6 7 8 9 10 11 12; do
            i=0; while [ $i -lt $((file * 20)) ]; do echo "$round $dir $file line $i"; i=$((i + 1)); done > $dir/file$file
        done
    done
    ln -sf one/file1 link$round; echo "#!/bin/sh" > run$round; chmod +x run$round
    git add -A; git commit -q -m "round $round"
    if [ $round = 3 ]; then git branch side; fi
done
git checkout -q side; git mv one renamed; echo more > more; git add more; git commit -q -m side
git checkout -q main; git merge -q -m merged side
git tag -a -m tagged v1
git rev-parse HEAD
"##;

/// In ./repo: everything that touches packs, the index and many files at once.
const USE: &str = r##"
cd repo; git fsck --full --strict; test -z "$(git status --porcelain)"
git gc -q --prune=now; git fsck --full
cd ..; git clone -q repo linked; git clone -q --no-hardlinks repo copied; git clone -q --bare repo bare.git
for clone in linked copied; do
    cd $clone; git fsck --full; git checkout -q HEAD~2; git checkout -q -b work v1; test -z "$(git status --porcelain)"
    echo change >> two/deep/file3; test -n "$(git status --porcelain)"; git commit -q -a -m change
    git push -q "../bare.git" work:work-$clone; git stash list; git reset -q --hard HEAD~1; cd ..
done
cd bare.git; git fsck --full; git repack -q -a -d; git fsck --full; git rev-parse work-linked; cd ..
git -C repo worktree add -q ../tree side; test -z "$(git -C tree status --porcelain)"
rm -rf linked copied
git -C repo rev-parse HEAD
"##;

pub fn run(place: &mut Place) {
    let local = place.local.path().to_owned();
    let wanted = place.sh(&local, &format!("{SETUP}{MAKE}"));
    let got = place.on_mount(&format!("{SETUP}{MAKE}"));
    assert_eq!(wanted, got, "the history is another one than on a local disk");
    let (wanted, got) = (place.sh(&local, &format!("{SETUP}{USE}")), place.on_mount(&format!("{SETUP}{USE}")));
    assert_eq!(wanted, got);
    // A clone from one file system to the other, both ways.
    place.sh(&local, &format!("{SETUP} git clone -q \"$DIR/bare.git\" back; git -C back fsck --full"));
    place.on_mount(&format!("{SETUP} git clone -q \"$LOCAL/bare.git\" there; git -C there fsck --full"));
}
