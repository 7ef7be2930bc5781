//! Configurations without what might be secret: only keys of a closed list keep their values, and no comment stays.

/// Keys whose values are no secrets. One that is not here is shown without its value, whatever it is.
const HARMLESS: &[&str] = &[
    "dir",
    "listen",
    "advertise",
    "http",
    "rack",
    "host",
    "checkpoint_generations",
    "request_log_mib",
    "admin_over_tcp",
    "feature_level_max",
    "members",
    "member",
    "join",
    "cluster_name",
    "enabled",
    "memory_max_mib",
    "disks",
    "replaced_disks",
    "direct_reads",
    "format",
    "filter",
    "strangers",
];

/// What may be shown of a configuration. Lines that belong to no known key are left out, also if the text is no TOML.
pub fn harmless(text: &str) -> String {
    let mut out = String::new();
    // Whether lines that continue a value are shown.
    let mut shown = false;
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim_end();
        let trimmed = line.trim();
        if trimmed.is_empty() {
            continue;
        }
        let section = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let is_word =
            |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        if section.is_some_and(is_word) {
            shown = false;
            out.push_str(trimmed);
        } else if let Some((key, _)) = trimmed.split_once('=').filter(|(key, _)| is_word(key.trim())) {
            let key = key.trim();
            shown = HARMLESS.contains(&key);
            out.push_str(&if shown { line.to_owned() } else { format!("{key} = (left out)") });
        } else if shown {
            out.push_str(line);
        } else {
            continue;
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key, a password or a comment with one would be sent to whoever helps.
    #[test]
    fn only_known_keys_keep_their_values() {
        let text = "# password: hunter2\n[node]\ndir = \"/var/lib/cairn\"  # hunter2\n[security]\nkey = \"hunter2\"\ncert = [\n  \"hunter2\",\n]\n\
                    [data]\ndisks = [\n  \"/mnt/disk1\",\n]\nsecret.key = 'hunter2'\npem = \"\"\"\nhunter2\n\"\"\"\nhunter2\n";
        let shown = harmless(text);
        assert!(!shown.contains("hunter2"), "{shown}");
        for part in
            ["dir = \"/var/lib/cairn\"", "[security]\nkey = (left out)", "  \"/mnt/disk1\",", "pem = (left out)"]
        {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }

    /// A value that looks like a key of ours would be shown.
    #[test]
    fn what_is_no_key_shows_nothing() {
        assert_eq!(harmless("hunter2\n\"a = b\" = 3\n-----BEGIN KEY-----\nabc=\n"), "abc = (left out)\n");
    }
}
