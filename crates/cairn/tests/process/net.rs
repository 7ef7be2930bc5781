//! A network of its own for a cluster under test: every process is a host with its own address, and its link can be cut in
//! both directions or in one.
//!
//! Hosts are network namespaces that a waiting process holds; a bridge in one more namespace connects them. All of it goes
//! with this process. Needs root and `ip`; nothing of the machine's own network is touched.
use std::collections::BTreeMap;
use std::fs;
use std::process::{Child, Command, Stdio};

/// A hardware address that nobody has: what is sent to it is lost.
const NOBODY: &str = "02:00:00:00:ff:fe";
/// Where every process of a cluster listens on its own host.
pub const PORT: u16 = 7000;

/// A namespace, for as long as this lives.
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new() -> Option<Namespace> {
        // It ends with the pipe, also when this process is killed.
        let holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut made = Namespace { holder };
        let own = fs::read_link("/proc/self/ns/net").ok()?;
        loop {
            if made.holder.try_wait().ok()?.is_some() {
                return None;
            }
            if fs::read_link(format!("/proc/{}/ns/net", made.holder.id())).is_ok_and(|other| other != own) {
                return Some(made);
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
    /// What `nsenter` is told.
    fn enter(&self) -> String {
        format!("--net=/proc/{}/ns/net", self.holder.id())
    }
    /// Runs `ip` in it.
    fn ip(&self, args: &str) -> bool {
        let mut command = Command::new("nsenter");
        command.arg(self.enter()).arg("ip").args(args.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ended = self.holder.kill();
        let _ended = self.holder.wait();
    }
}

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
}

impl Net {
    /// A network with these hosts; `None` where it cannot be made.
    pub fn new(names: &[String]) -> Option<Net> {
        let hub = Namespace::new()?;
        let made = hub.ip("link add name bridge type bridge") && hub.ip("link set dev bridge up");
        let mut net = Net { hub, hosts: BTreeMap::new() };
        let all = made && (1..).zip(names).all(|(number, name)| net.add(name, number).is_some());
        all.then_some(net)
    }
    fn add(&mut self, name: &str, number: u8) -> Option<()> {
        let host = Namespace::new()?;
        let done = self.hub.ip(&format!("link add name p{number} type veth peer name eth0 netns {}", host.holder.id()))
            && self.hub.ip(&format!("link set dev p{number} master bridge"))
            && self.hub.ip(&format!("link set dev p{number} up"))
            && host.ip("link set dev lo up")
            && host.ip(&format!("addr add 10.77.0.{number}/24 dev eth0"))
            && host.ip("link set dev eth0 up");
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
    pub fn cut(&self, name: &str, how: Cut) {
        self.set(name, how, true);
    }
    /// Whatever was cut is whole again.
    pub fn heal(&self, name: &str, how: Cut) {
        self.set(name, how, false);
    }
    fn set(&self, name: &str, how: Cut, cut: bool) {
        let (number, host) = &self.hosts[name];
        let lost = |from: &Namespace, to: u8| match cut {
            true => from.ip(&format!("neigh replace 10.77.0.{to} lladdr {NOBODY} dev eth0 nud permanent")),
            false => from.ip(&format!("neigh del 10.77.0.{to} dev eth0")),
        };
        let mut others = self.hosts.values().filter(|(other, _)| other != number);
        let done = match how {
            Cut::Whole => self.hub.ip(&format!("link set dev p{number} {}", if cut { "down" } else { "up" })),
            Cut::Mute => others.all(|(other, _)| lost(host, *other)),
            Cut::Deaf => others.all(|(_, other)| lost(other, *number)),
        };
        assert!(done, "{name}: {how:?}, cut: {cut}");
    }
    /// Whether a connection from one host to another is made within two seconds.
    pub fn connects(&self, from: &str, to: &str) -> bool {
        let (number, _) = &self.hosts[to];
        let open = format!("exec 3<>/dev/tcp/10.77.0.{number}/{PORT}");
        let mut command = Command::new("nsenter");
        command.arg(self.enter(from)).args(["timeout", "2", "bash", "-c", &open]).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}
