//! What is done to a cluster and its network, from the beginning of a fault to its end.
//!
//! Invariant: never more at a time than redundancy has to survive. Bytes are taken away from one data node only, and only
//! while all groups have all their members; all else comes back with what it had.
use crate::absent_disk::uuid_of;
use crate::mount::seeds::Rng;
use crate::namespaces::SmallDisk;
use crate::net::{Cut, Net};
use crate::support::Cluster;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
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
    /// Every process is ended and started again, one after the other.
    Rolling,
}

/// Each is taken as often as it is here before it is taken again.
const DECK: [Fault; 16] = [
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
    Fault::Rolling,
];

/// Bytes that a full disk has left: less than what a data node keeps free for its own use.
const LEFT: u64 = 64 << 20;

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
        if fault == Fault::Lost {
            self.cluster.wait_healthy();
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
            Fault::Kill | Fault::Power | Fault::Lost => self.cluster.start_all(),
            Fault::Stop => self.signal(victim, Signal::CONT),
            Fault::Cut => self.net.heal(victim, Cut::Whole),
            Fault::Mute => self.net.heal(victim, Cut::Mute),
            Fault::Deaf => self.net.heal(victim, Cut::Deaf),
            Fault::Slow => self.net.fast(victim),
            Fault::Full => self.small[victim].empty(),
            Fault::Rolling => {}
        }
    }

    /// A data node dies and all that is on its disk is gone; it is told so, and comes back with a new disk.
    fn lose(&mut self, victim: &str) {
        let uuid = uuid_of(&self.cluster, victim);
        self.cluster.kill(victim);
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
