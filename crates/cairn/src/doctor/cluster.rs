//! What others can be reached from here, how far their clocks are off, and which versions they run.
use super::Finding;
use super::labels::Identity;
use crate::config::Config;
use cairn_client::key::Key;
use cairn_client::{Client, ConnectOptions};
use cairn_env::{Clock, RealClock};
use cairn_format::label::{Label, LabelKind};
use cairn_security::Mode;
use cairn_types::ClusterId;
use cairn_wire::Opcode;
use cairn_wire::common::{Empty, ProcessStatsResponse};
use cairn_wire::manager::{ClusterMap, Node, StatusRequest, StatusResponse, WithoutKey};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// For a connection, and for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Clocks that differ by more are told.
const OFFSET_MAX_MS: f64 = 500.0;
/// Nodes that are asked; more would take long.
const ASKED_MAX: usize = 64;
/// Of those who have no key.
const NAMED_MAX: usize = 8;

const REACH: &str = "a node that cannot reach the others serves nobody, and is taken for lost";

/// Asks the managers, then everybody.
pub fn look(managers: &[String], config: Option<&Config>, identity: &Identity, key: Key) -> Vec<Finding> {
    let mut findings: Vec<Finding> = managers.iter().map(|address| reach("manager", address)).collect();
    if let Some(config) = config {
        findings.push(listens(config, identity.held));
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            findings.push(Finding::bad(
                "cluster",
                error.to_string(),
                "nothing can be asked",
                "check limits of the process",
            ));
            return findings;
        }
    };
    let requires = config.and_then(|config| config.security.as_ref()).is_some_and(|spec| spec.mode == Mode::Required);
    findings.extend(runtime.block_on(ask(managers, &identity.labels, key, requires)));
    findings
}

/// A connection, without a word.
fn reach(check: &'static str, address: &str) -> Finding {
    let connect = || -> std::io::Result<()> {
        let mut last = std::io::Error::other("the name has no address");
        for at in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&at, PATIENCE) {
                Ok(_) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    };
    match connect() {
        Ok(()) => Finding::good(check, format!("{address} can be reached")),
        Err(error) => {
            let text = format!("{address} cannot be reached: {error}");
            Finding::bad(check, text, REACH, "check that it runs, the address, routes and firewalls")
        }
    }
}

/// Either the server of this configuration runs here (somebody works in its directory), or its address is free.
pub(super) fn listens(config: &Config, held: bool) -> Finding {
    let listen = &config.node.listen;
    match TcpListener::bind(listen.as_str()) {
        Ok(_) => Finding::good("port", format!("{listen} is free: no server runs on it")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && !held => Finding::bad(
            "port",
            format!("{listen} is taken, and not by this node: nobody works in {}", config.node.dir.display()),
            "the server could not listen there",
            "stop the process that has it (ss -ltnp shows it), or choose another node.listen",
        ),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let at = config.node.advertise.as_ref().unwrap_or(listen);
            reach("port", at)
        }
        Err(error) => Finding::bad(
            "port",
            format!("{listen}: {error}"),
            "the server could not listen there",
            "node.listen has to be an address of this machine",
        ),
    }
}

async fn ask(managers: &[String], labels: &[(String, Label)], key: Key, requires: bool) -> Vec<Finding> {
    let options = ConnectOptions {
        patience: PATIENCE,
        connect_patience: PATIENCE,
        key,
        ..ConnectOptions::new(managers.to_vec())
    };
    let asked = async {
        let client = Client::connect(options).await.map_err(|error| error.to_string())?;
        let status: StatusResponse = client
            .manager("asking for the state of the cluster", Opcode::Status, &StatusRequest {})
            .await
            .map_err(|error| error.to_string())?;
        Ok::<_, String>((client, status))
    };
    let (client, status) = match tokio::time::timeout(2 * PATIENCE, asked).await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return vec![unanswered(error)],
        Err(_) => return vec![unanswered("no answer in time".into())],
    };
    let mut findings = vec![match status.problems.len() {
        0 => Finding::good("cluster", "the managers answer, and nothing is wrong"),
        count => Finding::warning(
            "cluster",
            format!("the managers answer, and see {count} problem{}", if count == 1 { "" } else { "s" }),
            "some of them may concern this node",
            "cairn admin status",
        ),
    }];
    if requires {
        findings.extend(plain(&status.plain));
    }
    let map = status.map.unwrap_or_default();
    findings.extend(labels.iter().filter_map(|(dir, label)| belongs(dir, label, &map)));
    let up: Vec<&Node> = map.nodes.iter().filter(|node| node.up && !node.removed && !node.address.is_empty()).collect();
    for node in up.iter().take(ASKED_MAX) {
        findings.push(peer(&client, node).await);
    }
    findings.push(versions(&map));
    findings
}

/// Who would be shut out when this node has its configuration.
pub(super) fn plain(who: &[WithoutKey]) -> Option<Finding> {
    // A stranger's word, printed for people.
    let names = who.iter().take(NAMED_MAX).map(|one| one.who.chars().filter(|c| !c.is_control()).collect::<String>());
    let names = names.collect::<Vec<_>>().join(", ");
    let more = if who.len() > NAMED_MAX { " and others" } else { "" };
    let what = format!("this configuration requires keys, and {names}{more} still come without one");
    let todo = "give them keys (cairn key), and restart the servers when cairn admin status names nobody";
    (!who.is_empty()).then(|| Finding::bad("security", what, "they would be shut out of this server", todo))
}

fn unanswered(error: String) -> Finding {
    Finding::bad(
        "cluster",
        format!("the managers do not answer: {error}"),
        "nodes cannot register, clients cannot begin",
        "start a majority of the managers, or name them with --cluster",
    )
}

/// Why the managers would refuse who has this directory, if so.
pub(super) fn belongs(dir: &str, label: &Label, map: &ClusterMap) -> Option<Finding> {
    let theirs = ClusterId::from_slice(&map.cluster)?;
    let removed = |node: &Node| node.id == label.node.get() && node.removed;
    let (what, todo) = if !label.cluster.is_none() && label.cluster != theirs {
        let what = format!("{dir} is of cluster {}, the managers are of cluster {theirs}", label.cluster);
        (what, "check the directories, and manager.members: some are another cluster's")
    } else if map.nodes.iter().any(removed) {
        let what = format!("{dir} is of {}, which was removed from this cluster", label.node);
        (what, "to use this machine again, delete everything in its node directory and on its disks")
    } else {
        return None;
    };
    let check = if label.kind == LabelKind::Node { "node dir" } else { "disk" };
    Some(Finding::bad(check, what, "the managers refuse it", todo))
}

/// Whether a node answers, and how far its clock is off.
async fn peer(client: &Client, node: &Node) -> Finding {
    let name = format!("n{} ({})", node.id, node.address);
    let before = RealClock.wall().0;
    let call =
        client.call::<ProcessStatsResponse>("asking a node", &node.address, Opcode::ProcessStats, &Empty {}, PATIENCE);
    let answer = match call.await {
        Ok(answer) => answer,
        Err(error) => {
            let todo = "check routes and firewalls between this machine and that one";
            return Finding::bad("node", format!("{name} does not answer from here: {error}"), REACH, todo);
        }
    };
    let after = RealClock.wall().0;
    if answer.wall_ns == 0 {
        return Finding::good("node", format!("{name} answers; version {} does not tell its clock", answer.version));
    }
    offset(&name, before, answer.wall_ns, after)
}

/// The answer was made at some time between: what is beyond that is the difference of the clocks.
pub(super) fn offset(name: &str, before: u64, there: u64, after: u64) -> Finding {
    let ms = |ns: i128| ns as f64 / 1e6;
    let (low, high) = (ms(i128::from(there) - i128::from(after)), ms(i128::from(there) - i128::from(before)));
    let least = if low > 0.0 {
        low
    } else if high < 0.0 {
        high
    } else {
        0.0
    };
    if least.abs() <= OFFSET_MAX_MS {
        return Finding::good(
            "node",
            format!("{name} answers; its clock is within {:.0} ms of the one here", low.abs().max(high.abs()).ceil()),
        );
    }
    let how = if least > 0.0 { "ahead of" } else { "behind" };
    Finding::warning(
        "clock",
        format!("the clock of {name} is at least {:.1} s {how} the one here", least.abs() / 1000.0),
        "times of files and events, expiry of trash and windows of hibernation go by clocks (leases and epochs do not)",
        "run chrony, ntpd or systemd-timesyncd on both",
    )
}

fn versions(map: &ClusterMap) -> Finding {
    let nodes = map.nodes.iter().filter(|node| node.up && !node.removed && !node.version.is_empty());
    let mut known: Vec<&str> = nodes.map(|node| node.version.as_str()).collect();
    known.push(env!("CARGO_PKG_VERSION"));
    known.sort_unstable();
    known.dedup();
    match known.as_slice() {
        [one] => Finding::good("versions", format!("all nodes that are up, and this command, are of version {one}")),
        several => Finding::warning(
            "versions",
            format!("there are versions {}", several.join(", ")),
            "what only the newer ones know is not used until all are alike",
            "finish the upgrade: cairn admin node ls shows who runs which",
        ),
    }
}
