//! Who asks: user and group from the request, supplementary groups from `/proc`.
//!
//! Root needs no groups. For everybody else they are read for each request that checks permissions: a cache would give
//! a thread that changes its groups the old ones.
use crate::abi::header::InHeader;
use cairn_vfs::Caller;
use std::io::Read;
use std::sync::Arc;

/// Of a request. `umask` as the kernel sent it.
pub fn of(header: &InHeader, umask: u32) -> Caller {
    let groups = if header.uid == 0 { Vec::new() } else { groups(header.pid) };
    Caller { uid: header.uid, gid: header.gid, groups: Arc::from(groups), pid: header.pid, umask }
}

/// Without groups, where they do not matter.
pub fn plain(header: &InHeader) -> Caller {
    Caller { uid: header.uid, gid: header.gid, groups: Arc::new([]), pid: header.pid, umask: 0 }
}

fn groups(pid: u32) -> Vec<u32> {
    if pid == 0 {
        return Vec::new();
    }
    let mut text = String::with_capacity(2048);
    let read = std::fs::File::open(format!("/proc/{pid}/status")).and_then(|mut file| file.read_to_string(&mut text));
    if read.is_err() {
        return Vec::new();
    }
    parse(&text)
}

fn parse(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_ascii_whitespace().filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members of a group would be refused what the group may do.
    #[test]
    fn groups_are_found() {
        assert_eq!(parse("Uid:\t1 1 1 1\nGroups:\t4 24 27 1000 \nNStgid:\t7\n"), [4, 24, 27, 1000]);
        assert_eq!(parse("Groups:\t \n"), [] as [u32; 0]);
    }
}
