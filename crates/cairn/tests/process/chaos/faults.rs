//! What is done to a cluster and its network, from the beginning of a fault to its end.
//!
//! Invariant: never more at a time than redundancy has to survive. Bytes are taken away from one data node only, or put
//! back to what they were some time before, and only while all groups have all their members; all else comes back with
//! what it had.
use crate::absent_disk::uuid_of;
use crate::disks::chunks;
use crate::mount::seeds::Rng;
use crate::namespaces::SmallDisk;
use crate::net::{Cut, Net};
use crate::support::Cluster;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Kill,
    Stop,
    Cut,
    Mute,
    Deaf,
    /// Little goes over a link.
    Slow,
    /// All processes of the cluster at once.
    Power,
    /// A disk has no space left.
    Full,
    /// Everything on a disk is deleted.
    Lost,
    /// A disk has again what was copied from it some time before.
    Back,
    /// Every process is ended and started again, one after the other.
    Rolling,
}

/// Each is taken as often as it is here before it is taken again.
const DECK: [Fault; 18] = [
    Fault::Kill,
    Fault::Kill,
    Fault::Kill,
    Fault::Stop,
    Fault::Stop,
    Fault::Cut,
    Fault::Cut,
    Fault::Mute,
    Fault::Deaf,
    Fault::Slow,
    Fault::Slow,
    Fault::Power,
    Fault::Full,
    Fault::Full,
    Fault::Lost,
    Fault::Back,
    Fault::Back,
    Fault::Rolling,
];

/// Bytes that a full disk has left: less than what a data node keeps free for its own use.
const LEFT: u64 = 64 << 20;

/// Disks of more bytes are not copied.
const COPIED_MAX: u64 = 3 << 30;
/// Free bytes that have to be left where they are copied to.
const FREE_MIN: u64 = 12 << 30;

/// Those that may come while another one lasts.
const SECOND: [Fault; 6] = [Fault::Kill, Fault::Stop, Fault::Cut, Fault::Mute, Fault::Deaf, Fault::Slow];

/// The cluster, its network, and what was done to them.
pub struct Chaos {
    pub cluster: Cluster,
    pub net: Net,
    /// Disks that can be filled.
    pub small: BTreeMap<String, SmallDisk>,
    /// Hosts of clients.
    pub clients: Vec<String>,
    pub rng: Rng,
    pub began: Instant,
    /// Links can be made slow.
    pub can_be_slow: bool,
    deck: Vec<Fault>,
    /// Whose disk was copied.
    copied: Option<String>,
    pub fired: BTreeMap<Fault, u64>,
}

impl Chaos {
    pub fn new(cluster: Cluster, net: Net, small: BTreeMap<String, SmallDisk>, clients: Vec<String>) -> Chaos {
        Chaos {
            cluster,
            net,
            small,
            clients,
            rng: Rng::new(0),
            began: Instant::now(),
            can_be_slow: false,
            deck: Vec::new(),
            copied: None,
            fired: BTreeMap::new(),
        }
    }
    /// The next fault; each kind comes before one comes again.
    fn next(&mut self) -> Fault {
        if self.deck.is_empty() {
            self.deck = DECK.to_vec();
            self.deck.retain(|fault| *fault != Fault::Slow || self.can_be_slow);
            self.deck.retain(|fault| *fault != Fault::Full || !self.small.is_empty());
        }
        let at = self.rng.index(self.deck.len());
        self.deck.swap_remove(at)
    }
    fn victim(&mut self, fault: Fault) -> String {
        let mut names = self.cluster.names();
        match fault {
            Fault::Cut | Fault::Mute | Fault::Deaf | Fault::Slow => names.extend(self.clients.iter().cloned()),
            Fault::Full => names = self.small.keys().cloned().collect(),
            Fault::Lost => names.retain(|name| name.starts_with("data") && !self.small.contains_key(name)),
            Fault::Back => match &self.copied {
                Some(name) => names = vec![name.clone()],
                None => names.retain(|name| name.starts_with("data") && !self.small.contains_key(name)),
            },
            Fault::Kill | Fault::Stop | Fault::Power | Fault::Rolling => {}
        }
        names[self.rng.index(names.len())].clone()
    }
    fn signal(&self, name: &str, signal: Signal) {
        let pid = Pid::from_raw(self.cluster.pid(name) as i32).expect("a process");
        kill_process(pid, signal).expect("a signal");
    }
    pub fn pause(&mut self, least_ms: u64, most_ms: u64) {
        std::thread::sleep(Duration::from_millis(least_ms + self.rng.below(most_ms - least_ms)));
    }
    fn tell(&mut self, fault: Fault, victim: &str) {
        println!("{:>4} s {fault:?} {victim}", self.began.elapsed().as_secs());
        *self.fired.entry(fault).or_default() += 1;
    }

    /// One fault, or two beside each other, from the beginning to the end.
    pub fn one(&mut self) {
        let fault = self.next();
        let victim = self.victim(fault);
        self.begin(fault, &victim);
        // Some are over before anybody knows, others outlast the time after which a node counts as down.
        let most_ms = if self.rng.one_in(3) { 16_000 } else { 4_000 };
        self.pause(200, most_ms);
        if !matches!(fault, Fault::Power | Fault::Rolling) && self.rng.one_in(3) {
            let second = self.rng.pick(&SECOND);
            let other = self.victim(second);
            if other != victim && (second != Fault::Slow || self.can_be_slow) {
                self.begin(second, &other);
                self.pause(200, 4000);
                self.end(second, &other);
            }
        }
        self.end(fault, &victim);
    }
    fn begin(&mut self, fault: Fault, victim: &str) {
        if matches!(fault, Fault::Lost | Fault::Back) {
            self.cluster.wait_repaired();
        }
        if fault == Fault::Back && self.copied.is_none() {
            return self.copy(victim);
        }
        self.tell(fault, victim);
        match fault {
            Fault::Kill => self.cluster.kill(victim),
            Fault::Stop => self.signal(victim, Signal::STOP),
            Fault::Cut => self.net.cut(victim, Cut::Whole),
            Fault::Mute => self.net.cut(victim, Cut::Mute),
            Fault::Deaf => self.net.cut(victim, Cut::Deaf),
            Fault::Slow => {
                let kbit = 500 << self.rng.below(6);
                assert!(self.net.slow(victim, kbit), "the link of {victim} cannot be made slow");
            }
            Fault::Power => self.cluster.kill_all(),
            Fault::Full => assert!(self.small[victim].fill(LEFT) > 0, "the disk of {victim} was full before"),
            Fault::Lost => self.lose(victim),
            Fault::Back => self.put_back(victim),
            Fault::Rolling => {
                for name in self.cluster.names() {
                    self.cluster.stop(&name);
                    self.cluster.restart(&name);
                }
            }
        }
    }
    fn end(&mut self, fault: Fault, victim: &str) {
        match fault {
            Fault::Kill | Fault::Power | Fault::Lost | Fault::Back => self.cluster.start_all(),
            Fault::Stop => self.signal(victim, Signal::CONT),
            Fault::Cut => self.net.heal(victim, Cut::Whole),
            Fault::Mute => self.net.heal(victim, Cut::Mute),
            Fault::Deaf => self.net.heal(victim, Cut::Deaf),
            Fault::Slow => self.net.fast(victim),
            Fault::Full => self.small[victim].empty(),
            Fault::Rolling => {}
        }
    }

    fn copy_of(&self, victim: &str) -> PathBuf {
        self.cluster.path("copies").join(victim)
    }

    /// A data node is killed, and its disk copied as it is then, for another time.
    fn copy(&mut self, victim: &str) {
        self.tell(Fault::Kill, victim);
        self.cluster.kill(victim);
        let (disk, copy) = (self.cluster.disk(victim), self.copy_of(victim));
        let used: u64 =
            chunks(&disk).iter().filter_map(|path| fs::metadata(path).ok()).map(|at| at.blocks() * 512).sum();
        let free = rustix::fs::statvfs(self.cluster.dir.path()).map_or(0, |at| at.f_bavail * at.f_frsize);
        if used > COPIED_MAX || free < FREE_MIN + used {
            return println!("       its disk is not copied: {used} bytes, {free} are free");
        }
        fs::create_dir_all(copy.parent().expect("a directory")).expect("a directory");
        let (from, to) = (disk.to_str().expect("utf-8"), copy.to_str().expect("utf-8"));
        let copied = Command::new("cp").args(["-a", "--sparse=always", from, to]).status();
        assert!(copied.is_ok_and(|status| status.success()), "{from} cannot be copied");
        self.copied = Some(victim.to_owned());
    }

    /// It dies, and comes back with what its disk had then.
    fn put_back(&mut self, victim: &str) {
        self.cluster.kill(victim);
        let disk = self.cluster.disk(victim);
        fs::remove_dir_all(&disk).expect("deleted");
        fs::rename(self.copy_of(victim), &disk).expect("put back");
        self.copied = None;
    }

    /// A data node dies and all that is on its disk is gone; it is told so, and comes back with a new disk.
    fn lose(&mut self, victim: &str) {
        let uuid = uuid_of(&self.cluster, victim);
        self.cluster.kill(victim);
        // A copy would be of another disk from now on.
        if self.copied.as_deref() == Some(victim) {
            fs::remove_dir_all(self.copy_of(victim)).expect("deleted");
            self.copied = None;
        }
        let disk = self.cluster.disk(victim);
        fs::remove_dir_all(&disk).expect("deleted");
        fs::create_dir(&disk).expect("an empty one");
        let path = self.cluster.path(&format!("{victim}.toml"));
        let config = fs::read_to_string(&path).expect("configuration");
        let (listed, mut lines): (Vec<&str>, Vec<&str>) =
            config.lines().partition(|line| line.starts_with("replaced_disks"));
        let before =
            listed.first().and_then(|line| line.split_once('[')).map_or("", |(_, list)| list.trim_end_matches(']'));
        // The section of disks is the last one.
        let line = format!("replaced_disks = [{before}{uuid:?},]");
        lines.push(&line);
        fs::write(&path, lines.join("\n") + "\n").expect("configuration");
    }
}
