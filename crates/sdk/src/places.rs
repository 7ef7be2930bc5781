//! Where the bytes of a file are: machines and racks, for programs that run their work near them.
//!
//! A hint: members change, and what is read comes from whoever has it. Not here: choosing a member to read from
//! (`client`).
use crate::error::{Error, Result};
use crate::live::Live;
use crate::volume::Volume;
use cairn_client::view::ClusterView;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A machine that has a part of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Host {
    /// As its server was told to call it; the address without one.
    pub name: String,
    /// `host:port` of its server.
    pub address: String,
    pub rack: String,
}

/// A part of a file and the machines that have it, nearest to its writer first: each of them all of it, or of erasure
/// coded and striped parts each some of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub offset: u64,
    pub length: u64,
    pub hosts: Vec<Host>,
}

/// Machines of a striped part that are named.
const HOSTS_MAX: usize = 16;

impl Volume {
    /// Where the bytes of a range are; holes are nowhere. Neighbours on the same machines are one part.
    pub fn places(&self, path: impl AsRef<Path>, offset: u64, length: u64) -> Result<Vec<Place>> {
        let path = path.as_ref();
        let inode = self.stat(path)?.inode;
        let live = self.live()?;
        let found = live.run_client(path, gather(live, inode, (offset, offset.saturating_add(length)), usize::MAX))?;
        Ok(joined(found))
    }

    /// The part of a file at an offset; where that is in a hole, the next one. `None`: nothing comes any more.
    pub fn place_at(&self, path: impl AsRef<Path>, offset: u64) -> Result<Option<Place>> {
        let path = path.as_ref();
        let inode = self.stat(path)?.inode;
        let live = self.live()?;
        let found = live.run_client(path, gather(live, inode, (offset, u64::MAX), 1))?;
        Ok(joined(found).into_iter().next())
    }
}

/// Of a range, page by page, until there are so many.
async fn gather(live: &Live, inode: u64, (offset, end): (u64, u64), enough: usize) -> cairn_client::Result<Vec<Place>> {
    let volume = live.own_volume();
    let (mut at, mut places) = (offset, Vec::new());
    while at < end && places.len() < enough {
        let page = volume.extents_page(inode, at, end - at).await?;
        let view = live.vfs.client().view();
        for extent in &page.extents {
            let set = page.sets.iter().find(|set| set.first == extent.chunk);
            let chunks = set.map_or(std::slice::from_ref(&extent.chunk), |set| &set.columns);
            let groups: Vec<u32> = chunks.iter().map(|chunk| chunk.pg.0).collect();
            let (begin, stop) = (extent.file_offset.max(offset), extent.file_end().min(end));
            if begin < stop {
                places.push(Place { offset: begin, length: stop - begin, hosts: hosts(&view, &groups) });
            }
        }
        match page.extents.last() {
            Some(last) if !page.end => at = last.file_end(),
            _ => break,
        }
    }
    Ok(places)
}

/// Machines that serve the groups: of one group in its order, of several those first that have most.
fn hosts(view: &ClusterView, groups: &[u32]) -> Vec<Host> {
    let mut ranked: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    let distinct: BTreeSet<u32> = groups.iter().copied().collect();
    for group in &distinct {
        let Some(group) = view.pgs.get(group) else { continue };
        for (order, disk) in group.serving().enumerate() {
            if let Some(disk) = view.disks.get(&disk) {
                let (has, best) = ranked.entry(disk.node).or_insert((0, order));
                (*has, *best) = (*has + 1, order.min(*best));
            }
        }
    }
    let mut nodes: Vec<(usize, usize, u32)> =
        ranked.into_iter().map(|(node, (has, order))| (usize::MAX - has, order, node)).collect();
    nodes.sort_unstable();
    let host = |node: u32| {
        let node = view.nodes.get(&node).filter(|node| node.up)?;
        let of_address = node.address.rsplit_once(':').map_or(node.address.as_str(), |(host, _)| host);
        let name = if node.host.is_empty() { of_address } else { &node.host };
        Some(Host { name: name.to_owned(), address: node.address.clone(), rack: node.rack.clone() })
    };
    nodes.into_iter().filter_map(|(_, _, node)| host(node)).take(HOSTS_MAX).collect()
}

fn joined(places: Vec<Place>) -> Vec<Place> {
    let mut joined: Vec<Place> = Vec::new();
    for place in places {
        match joined.last_mut() {
            Some(last) if last.offset + last.length == place.offset && last.hosts == place.hosts => {
                last.length += place.length;
            }
            _ => joined.push(place),
        }
    }
    joined
}

impl Live {
    /// As [`Live::run`], of a call of the client itself.
    pub(crate) fn run_client<T>(&self, what: &Path, call: impl Future<Output = cairn_client::Result<T>>) -> Result<T> {
        let told = |error: cairn_client::ClientError| Error::from_client(&what.to_string_lossy(), &error);
        self.block(what, call)?.map_err(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::map::{Disk, Node};
    use cairn_client::view::PgView;
    use cairn_types::{Epoch, MemberState, PgId, Scheme};

    fn view() -> ClusterView {
        let mut view = ClusterView::default();
        for id in 1..=4 {
            let (address, rack) = (format!("10.0.0.{id}:7"), format!("r{id}"));
            let host = if id == 4 { String::new() } else { format!("h{id}") };
            view.nodes.insert(id, Node { id, address, rack, host, up: id != 3, ..Node::default() });
            view.disks.insert(id * 10, Disk { id: id * 10, node: id, ..Disk::default() });
        }
        let mut group = |id: u32, members: &[u32]| {
            let members = members.iter().map(|disk| (*disk, MemberState::Serving)).collect();
            let scheme = Scheme::from_code(3).expect("r3");
            let group = PgView {
                id: PgId(id),
                volume: 1,
                scheme,
                epoch: Epoch(1),
                members,
                writable: true,
                free_bytes: 0,
                column: None,
            };
            view.pgs.insert(id, group);
        };
        group(1, &[20, 10, 40]);
        group(2, &[10, 30, 40]);
        view
    }

    /// A scheduler would send work to machines that are down, or to those last that have the file.
    #[test]
    fn machines_come_in_the_order_of_what_they_have() {
        let names = |groups: &[u32]| hosts(&view(), groups).into_iter().map(|host| host.name).collect::<Vec<_>>();
        assert_eq!(names(&[1]), ["h2", "h1", "10.0.0.4"]);
        assert_eq!(names(&[2]), ["h1", "10.0.0.4"], "the third node is down");
        assert_eq!(names(&[1, 2, 2]), ["h1", "10.0.0.4", "h2"]);
        assert_eq!(names(&[9]), Vec::<String>::new());
    }

    /// A file of a thousand appends would be a thousand parts.
    #[test]
    fn neighbours_on_the_same_machines_are_one_part() {
        let place = |offset, length, group: u32| Place { offset, length, hosts: hosts(&view(), &[group]) };
        let found = joined(vec![place(0, 5, 1), place(5, 5, 1), place(10, 5, 2), place(20, 5, 2)]);
        assert_eq!(found, [place(0, 10, 1), place(10, 5, 2), place(20, 5, 2)]);
    }
}
