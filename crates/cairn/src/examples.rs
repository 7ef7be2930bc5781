//! Examples at the end of each help page and manual page: one table, put into the command line before it is parsed.
//!
//! Each example parses, and each command has one: tests hold both. Commands whose own help has examples already are not
//! in the table.
use clap::Command;

/// The words of a command, and lines as a person types them. What stands behind `#` is said to the reader.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("dev", &["cairn dev --data-dir /tmp/cairn", "cairn dev --data-dir /tmp/cairn --nodes 3 --listen 127.0.0.1:7500"]),
    ("server", &["cairn server --config /etc/cairn/node.toml"]),
    ("doctor", &["cairn doctor", "cairn doctor --config /etc/cairn/data.toml"]),
    ("key init", &["cairn key init authority"]),
    (
        "key node",
        &["cairn key node --ca authority /etc/cairn/data1.toml", "cairn key node --ca authority --out keys *.toml"],
    ),
    (
        "key client",
        &[
            "cairn key client alice --ca authority --volume docs --volume media:ro",
            "cairn key client robot --ca authority --volume default --uid 1000",
        ],
    ),
    ("key admin", &["cairn key admin ops-1 --ca authority --days 365"]),
    (
        "key token",
        &[
            "cairn key token data1 --ca authority --roles data",
            "cairn key token manager1 --ca authority --roles manager+meta --node 1",
            "cairn key token alice --ca authority --volume docs --life 30d",
        ],
    ),
    ("key serve", &["cairn key serve --ca authority --listen 10.0.0.1:7390"]),
    (
        "key enrol",
        &[
            "cairn key enrol --at 10.0.0.1:7390 --token - /etc/cairn/data1.toml",
            "cairn key enrol --at 10.0.0.1:7390 --token - --out alice.key",
        ],
    ),
    ("key ls", &["cairn key ls --ca authority"]),
    ("key show", &["cairn key show alice.key"]),
    ("inspect", &["cairn inspect /var/lib/cairn/node/label", "cairn inspect -v /mnt/disk1/cairn/journal"]),
    (
        "mount",
        &[
            "cairn mount cairn://host1:7400,host2:7400/default /mnt/data",
            "cairn mount -o ro,cache=1g default:/archive /mnt/archive",
            "cairn mount --status",
            "cairn mount --upgrade /mnt/data",
        ],
    ),
    ("umount", &["cairn umount /mnt/data", "cairn umount --lazy /mnt/data"]),
    ("bench meta", &["cairn bench meta --clients 1,64 --operations create,stat,unlink"]),
    ("bench io", &["cairn bench io --layouts r3,rs-6-3 --streams 1,4 --size 1g"]),
    ("bench files", &["cairn bench files --count 4000 --size 200k --parallel 16"]),
    ("bench append", &["cairn bench append --writers 32 --records 100000"]),
    ("bench erasure", &["cairn bench erasure"]),
    ("bench snapshot", &["cairn bench snapshot --files 1000000 --snapshots 100"]),
    ("bench replay", &["cairn bench replay --speed 2 /var/lib/cairn/node/requests/0000000007"]),
    ("fs ls", &["cairn fs ls -l /", "cairn fs ls -lRh /project", "cairn fs ls '/logs/*.gz'"]),
    ("fs stat", &["cairn fs stat /archive/big.tar", "cairn fs stat -e /archive/big.tar   # where its contents are"]),
    ("fs mkdir", &["cairn fs mkdir -p /project/data", "cairn fs mkdir --layout rs-6-3 /archive"]),
    (
        "fs put",
        &[
            "cairn fs put -r ./tree /project/",
            "cairn fs put --update ./tree/. /project   # only what changed",
            "tar c . | cairn fs put - /backup.tar",
        ],
    ),
    ("fs get", &["cairn fs get /project/report.pdf .", "cairn fs get -r /project ./copy"]),
    ("fs cat", &["cairn fs cat /logs/today", "cairn fs cat --offset 1m --length 4k /big.bin"]),
    ("fs cp", &["cairn fs cp /a /b", "cairn fs cp -r /project cairn://other:7400/default/project"]),
    (
        "fs clone",
        &["cairn fs clone /project /project-try", "cairn fs clone /vm/disk.img@monday /vm/disk-of-monday.img"],
    ),
    ("fs mv", &["cairn fs mv /a /b", "cairn fs mv --exchange /current /next"]),
    ("fs rm", &["cairn fs rm /old", "cairn fs rm -r --skip-trash /scratch   # for good"]),
    (
        "fs snapshot create",
        &[
            "cairn fs snapshot create monday",
            "cairn fs snapshot create before-upgrade data:/",
            "cairn fs snapshot create draft /home/ann",
        ],
    ),
    ("fs snapshot ls", &["cairn fs snapshot ls --human", "cairn fs snapshot ls data:/"]),
    ("fs snapshot rename", &["cairn fs snapshot rename monday last-monday"]),
    ("fs snapshot delete", &["cairn fs snapshot delete last-monday"]),
    (
        "fs snapshot restore",
        &[
            "cairn fs snapshot restore /home/ann/letter.txt@monday",
            "cairn fs snapshot restore /photos@monday --to /photos-of-monday",
        ],
    ),
    ("fs snapshot diff", &["cairn fs snapshot diff monday", "cairn fs snapshot diff monday tuesday --path /home/ann"]),
    (
        "fs snapshot schedule set",
        &["cairn fs snapshot schedule set hourly=24,daily=7", "cairn fs snapshot schedule set daily=30 /home/ann"],
    ),
    ("fs snapshot schedule ls", &["cairn fs snapshot schedule ls"]),
    ("fs snapshot schedule clear", &["cairn fs snapshot schedule clear data:/"]),
    ("fs trash ls", &["cairn fs trash ls", "cairn fs trash ls --all"]),
    (
        "fs trash restore",
        &["cairn fs trash restore /home/ann/report", "cairn fs trash restore /report --to /report.old"],
    ),
    ("fs trash empty", &["cairn fs trash empty", "cairn fs trash empty /home/ann/report"]),
    ("fs trash keep", &["cairn fs trash keep /project 7d", "cairn fs trash keep /scratch off"]),
    ("fs rmdir", &["cairn fs rmdir /empty"]),
    ("fs shard", &["cairn fs shard /huge"]),
    ("fs du", &["cairn fs du -sh /project", "cairn fs du -r /archive   # what is missing of it"]),
    ("fs df", &["cairn fs df -h"]),
    ("fs find", &["cairn fs find / -name '*.log' -size +100m", "cairn fs find /project -type f -mtime +30"]),
    ("fs tail", &["cairn fs tail -n 20 /logs/today", "cairn fs tail -f /logs/today"]),
    ("fs head", &["cairn fs head -n 20 /logs/today", "cairn fs head -c 512 /a /b"]),
    ("fs count", &["cairn fs count -h /project"]),
    ("fs truncate", &["cairn fs truncate -s 0 /logs/today", "cairn fs truncate -s +1g /disk.img"]),
    ("fs touch", &["cairn fs touch /stamp", "cairn fs touch -d 2026-01-31 /stamp"]),
    ("fs ln", &["cairn fs ln /a /b", "cairn fs ln -s ../releases/7 /current"]),
    ("fs readlink", &["cairn fs readlink /current"]),
    ("fs chmod", &["cairn fs chmod 0640 /report", "cairn fs chmod -R u+rwX,go-w /project"]),
    ("fs chown", &["cairn fs chown ann:staff /report", "cairn fs chown -R :staff /project"]),
    ("fs layout get", &["cairn fs layout get /archive"]),
    (
        "fs layout set",
        &[
            "cairn fs layout set rs-6-3 /archive   # for new files",
            "cairn fs layout set 'r3>rs-6-3@2h' /warm   # copies, encoded 2 hours after the last change",
        ],
    ),
    ("fs layout convert", &["cairn fs layout convert rs-6-3 /archive", "cairn fs layout convert --background r3 /hot"]),
    ("fs layout encode", &["cairn fs layout encode /warm", "cairn fs layout encode --background /warm/big.bin"]),
    ("fs layout jobs", &["cairn fs layout jobs", "cairn fs layout jobs 2"]),
    ("fs layout cancel", &["cairn fs layout cancel 2"]),
    (
        "fs quota set",
        &["cairn fs quota set --bytes 500g --inodes 1000000 /home/ann", "cairn fs quota set --bytes 10t --volume /"],
    ),
    ("fs quota get", &["cairn fs quota get /home/ann"]),
    ("fs quota ls", &["cairn fs quota ls --human"]),
    ("fs quota rm", &["cairn fs quota rm /home/ann"]),
    ("fs xattr ls", &["cairn fs xattr ls /report"]),
    ("fs xattr get", &["cairn fs xattr get /report user.owner"]),
    ("fs xattr set", &["cairn fs xattr set /report user.owner ann"]),
    ("fs xattr rm", &["cairn fs xattr rm /report user.owner"]),
    ("admin status", &["cairn admin status", "cairn --json admin status   # for scripts: healthy, problems"]),
    ("admin node ls", &["cairn admin node ls"]),
    ("admin node remove", &["cairn admin node remove n17"]),
    ("admin disk ls", &["cairn admin disk ls"]),
    ("admin disk clear", &["cairn admin disk clear d3"]),
    ("admin disk remove", &["cairn admin disk remove d3"]),
    ("admin events", &["cairn admin events --since 2h", "cairn admin events --node n17 --kind node-down --follow"]),
    ("admin volume ls", &["cairn admin volume ls"]),
    ("admin volume create", &["cairn admin volume create home", "cairn admin volume create archive --layout r3"]),
    (
        "admin volume set",
        &[
            "cairn admin volume set default rebalance_above=80 rebalance_below=60",
            "cairn admin volume set docs private_data=on",
        ],
    ),
    ("admin volume delete", &["cairn admin volume delete scratch"]),
    ("admin volume restore", &["cairn admin volume restore scratch"]),
    ("admin volume purge", &["cairn admin volume purge scratch --yes"]),
    ("admin pg", &["cairn admin pg 7", "cairn admin pg ls --unhealthy"]),
    ("admin pg ls", &["cairn admin pg ls --unhealthy", "cairn admin pg ls --volume default"]),
    (
        "admin pg force",
        &["cairn admin pg force 7 --lost d3   # says what would be lost", "cairn admin pg force 7 --known-loss"],
    ),
    ("admin repair", &["cairn admin repair"]),
    ("admin drain start", &["cairn admin drain start node n17", "cairn admin drain start disk d3 --wait"]),
    ("admin drain cancel", &["cairn admin drain cancel rack r1"]),
    ("admin drain ls", &["cairn admin drain ls"]),
    (
        "admin hibernate start",
        &["cairn admin hibernate start node n17 --for 45m", "cairn admin hibernate start rack r1"],
    ),
    ("admin hibernate end", &["cairn admin hibernate end node n17"]),
    ("admin hibernate ls", &["cairn admin hibernate ls"]),
    ("admin partition ls", &["cairn admin partition ls", "cairn admin partition ls default"]),
    ("admin partition split", &["cairn admin partition split 1 --into 4"]),
    ("admin partition move", &["cairn admin partition move 1 n16 n19", "cairn admin partition move all n16"]),
    ("admin partition add", &["cairn admin partition add 1 n19 n20"]),
    ("admin partition remove", &["cairn admin partition remove 1 n19 n20"]),
    ("admin partition renew", &["cairn admin partition renew all n18"]),
    ("admin partition accept-loss", &["cairn admin partition accept-loss 1 n18 --yes"]),
    ("admin manager ls", &["cairn admin manager ls"]),
    ("admin manager add", &["cairn admin manager add 2@10.0.0.2:7400"]),
    ("admin manager remove", &["cairn admin manager remove 2"]),
    ("admin manager renew", &["cairn admin manager renew 2"]),
    ("admin manager go-on", &["cairn admin manager go-on --yes"]),
    ("admin manager accept-loss", &["cairn admin manager accept-loss 10.0.0.2:7400 --yes"]),
    ("admin scrub status", &["cairn admin scrub status", "cairn admin scrub status d2"]),
    ("admin scrub start", &["cairn admin scrub start d2"]),
    ("admin fsck", &["cairn admin fsck", "cairn admin fsck home --repair"]),
    ("admin backup", &["cairn admin backup /backup/cairn --keep 14", "cairn admin backup /backup/cairn --verify"]),
    ("admin restore", &["cairn admin restore /backup/cairn --node n18 --dir /var/lib/cairn/meta --partition 1"]),
    (
        "admin rebuild-map",
        &[
            "cairn admin rebuild-map --save-scan host7.scan /var/lib/cairn/node",
            "cairn admin rebuild-map --manager 1@10.0.0.1:7400 --dir /var/lib/cairn/manager host7.scan host8.scan",
        ],
    ),
    ("admin key revoke", &["cairn admin key revoke alice", "cairn admin key revoke node4 ops-2"]),
    ("admin key ls", &["cairn admin key ls"]),
    ("admin config get", &["cairn admin config get", "cairn admin config get repair_delay"]),
    (
        "admin config set",
        &[
            "cairn admin config set repair_delay=1h node_timeout=20s",
            "cairn admin config set repair_delay=   # the default again",
        ],
    ),
];

/// The command line with the examples behind each command's help.
pub fn add(command: Command) -> Command {
    below(command, "")
}

/// The first example of a command, without what is said to the reader.
pub fn first(words: &str) -> Option<&'static str> {
    let (_, lines) = EXAMPLES.iter().find(|(path, _)| *path == words)?;
    lines.first().map(|line| line.split("   #").next().unwrap_or(line))
}

fn below(command: Command, path: &str) -> Command {
    let command = match EXAMPLES.iter().find(|(words, _)| *words == path) {
        Some((_, lines)) => {
            let before = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
            let head = if lines.len() == 1 { "Example:" } else { "Examples:" };
            command.after_help(format!("{before}{head}\n  {}", lines.join("\n  ")))
        }
        None => command,
    };
    command.mut_subcommands(|sub| {
        let name = sub.get_name();
        let path = if path.is_empty() { name.to_owned() } else { format!("{path} {name}") };
        below(sub, &path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    /// Every command without subcommands, or that works without one, with its words.
    fn all(command: &Command, path: &str, found: &mut Vec<(String, Command)>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            let path = if path.is_empty() { sub.get_name().to_owned() } else { format!("{path} {}", sub.get_name()) };
            if !sub.has_subcommands() {
                found.push((path.clone(), sub.clone()));
            }
            all(sub, &path, found);
        }
    }

    /// A person would have to guess how a command is used.
    #[test]
    fn each_command_has_an_example() {
        let (command, mut found) = (add(Cli::command()), Vec::new());
        all(&command, "", &mut found);
        assert!(found.len() > 80, "only {} commands", found.len());
        let lacks = found
            .iter()
            .filter(|(_, sub)| !sub.get_after_help().is_some_and(|text| text.to_string().contains("Example")));
        let lacks: Vec<&String> = lacks.map(|(path, _)| path).collect();
        assert!(lacks.is_empty(), "without an example: {lacks:?}");
        let known = |words: &str| words == "admin pg" || found.iter().any(|(path, _)| path == words);
        let stray: Vec<&str> = EXAMPLES.iter().map(|(words, _)| *words).filter(|words| !known(words)).collect();
        assert!(stray.is_empty(), "examples of no command: {stray:?}");
    }

    /// A person would copy a line that the program refuses.
    #[test]
    fn each_example_is_a_command_line() {
        let (command, mut found, mut lines) = (add(Cli::command()), Vec::new(), 0);
        all(&command, "", &mut found);
        for (path, sub) in &found {
            let text = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in
                text.lines().filter_map(|line| line.split_once("cairn ")).filter(|(before, _)| !before.contains('`'))
            {
                // Only lines that are commands, alone or behind a pipe.
                if !(line.0.trim().is_empty() || line.0.trim_end().ends_with(['|', ':'])) {
                    continue;
                }
                let words = format!("cairn {}", line.1);
                let words = words.split("   #").next().unwrap_or_default();
                let ends = ["; ", " | ", " < ", " > ", " &"].iter().filter_map(|end| words.find(end)).min();
                let words = &words[..ends.unwrap_or(words.len())];
                let words = words.split_whitespace().map(|word| word.trim_matches('\'').into());
                let parsed = command.clone().try_get_matches_from(cairn_cli::expand_args(words));
                assert!(
                    parsed.is_ok(),
                    "{path}: {}: {}",
                    line.1,
                    parsed.err().map(|e| e.to_string()).unwrap_or_default()
                );
                lines += 1;
            }
        }
        assert!(lines > 100, "only {lines} lines were looked at");
    }
}
