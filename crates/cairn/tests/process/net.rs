//! A network of its own for a cluster under test: every process is a host with its own address, and its link can be cut
//! in both directions or in one, or made slow.
//!
//! Hosts are network name spaces; a bridge in one more connects them. Needs root (also that of a user name space) and
//! `ip`, for slow links `tc`; nothing of the machine's own network is touched.
use crate::namespaces::Namespace;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A hardware address that nobody has: what is sent to it is lost.
const NOBODY: &str = "02:00:00:00:ff:fe";
/// Where every process of a cluster listens on its own host.
pub const PORT: u16 = 7000;

/// How a host is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nothing comes and nothing goes.
    Whole,
    /// What it sends is lost.
    Mute,
    /// What is sent to it is lost.
    Deaf,
}

/// The hosts, by their names.
pub struct Net {
    hub: Namespace,
    hosts: BTreeMap<String, (u8, Namespace)>,
    /// Ways on which everything is lost, from one host to another, and for how many cuts: two may have the same one.
    lost: RefCell<BTreeMap<(u8, u8), u32>>,
}

impl Net {
    /// A network with these hosts; `None` where it cannot be made.
    pub fn new(names: &[String]) -> Option<Net> {
        let hub = Namespace::network()?;
        let made = hub.run("ip", "link add name bridge type bridge") && hub.run("ip", "link set dev bridge up");
        let mut net = Net { hub, hosts: BTreeMap::new(), lost: RefCell::default() };
        let all = made && (1..).zip(names).all(|(number, name)| net.add(name, number).is_some());
        all.then_some(net)
    }
    fn add(&mut self, name: &str, number: u8) -> Option<()> {
        let host = Namespace::network()?;
        let pid = host.pid();
        let done = self.hub.run("ip", &format!("link add name p{number} type veth peer name eth0 netns {pid}"))
            && self.hub.run("ip", &format!("link set dev p{number} master bridge"))
            && self.hub.run("ip", &format!("link set dev p{number} up"))
            && host.run("ip", "link set dev lo up")
            && host.run("ip", &format!("addr add 10.77.0.{number}/24 dev eth0"))
            && host.run("ip", "link set dev eth0 up");
        self.hosts.insert(name.to_owned(), (number, host));
        done.then_some(())
    }
    pub fn address(&self, name: &str) -> String {
        format!("10.77.0.{}:{PORT}", self.hosts[name].0)
    }
    /// What `nsenter` is told, so that a program runs on a host.
    pub fn enter(&self, name: &str) -> String {
        self.hosts[name].1.enter()
    }
    /// The name space of a host, for a thread to go there.
    pub fn file(&self, name: &str) -> PathBuf {
        self.hosts[name].1.file()
    }
    pub fn cut(&self, name: &str, how: Cut) {
        self.set(name, how, true);
    }
    /// Whatever was cut is whole again.
    pub fn heal(&self, name: &str, how: Cut) {
        self.set(name, how, false);
    }
    fn set(&self, name: &str, how: Cut, cut: bool) {
        let (number, host) = &self.hosts[name];
        let mut others = self.hosts.values().filter(|(other, _)| other != number);
        let done = match how {
            Cut::Whole => self.hub.run("ip", &format!("link set dev p{number} {}", if cut { "down" } else { "up" })),
            Cut::Mute => others.all(|(other, _)| self.lose((*number, host), *other, cut)),
            Cut::Deaf => others.all(|(other, space)| self.lose((*other, space), *number, cut)),
        };
        assert!(done, "{name}: {how:?}, cut: {cut}");
    }
    /// Loses what goes from one host to another, or lets it through when no other cut loses it.
    fn lose(&self, (from, space): (u8, &Namespace), to: u8, cut: bool) -> bool {
        let mut lost = self.lost.borrow_mut();
        let cuts = lost.entry((from, to)).or_default();
        *cuts = if cut { *cuts + 1 } else { cuts.checked_sub(1).expect("it was cut") };
        match (cut, *cuts) {
            (true, 1) => space.run("ip", &format!("neigh replace 10.77.0.{to} lladdr {NOBODY} dev eth0 nud permanent")),
            (false, 0) => space.run("ip", &format!("neigh del 10.77.0.{to} dev eth0")),
            _ => true,
        }
    }
    /// Lets so little through in both directions; what waits too long is lost. False where there is no such thing.
    pub fn slow(&self, name: &str, kbit: u64) -> bool {
        let (number, host) = &self.hosts[name];
        let how = format!("root tbf rate {kbit}kbit burst 16kb latency 300ms");
        let slow = |space: &Namespace, device: &str| space.run("tc", &format!("qdisc add dev {device} {how}"));
        slow(&self.hub, &format!("p{number}")) && slow(host, "eth0")
    }
    /// As fast as it was.
    pub fn fast(&self, name: &str) {
        let (number, host) = &self.hosts[name];
        let fast = |space: &Namespace, device: &str| space.run("tc", &format!("qdisc del dev {device} root"));
        assert!(fast(&self.hub, &format!("p{number}")) && fast(host, "eth0"), "{name} stays slow");
    }
    /// Whether a connection from one host to another is made within so many seconds.
    pub fn connects(&self, from: &str, to: &str, seconds: u32) -> bool {
        let (number, _) = &self.hosts[to];
        let open = format!("exec 3<>/dev/tcp/10.77.0.{number}/{PORT}");
        let mut command = Command::new("nsenter");
        command
            .arg(self.enter(from))
            .args(["timeout", &seconds.to_string(), "bash", "-c", &open])
            .stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}
