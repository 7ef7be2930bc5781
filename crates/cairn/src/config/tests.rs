//! Configuration files, right and wrong.
use super::parse;
use cairn_wire::protection::Protection;

const GOOD: &str = r#"
[node]
dir = "/var/lib/cairn"
listen = "10.0.0.1:7400"
rack = "a"
checkpoint_generations = 5
request_log_mib = 0

[manager]
members = ["1@10.0.0.1:7400", "2@10.0.0.2:7400", "3@10.0.0.3:7400"]
member = 1

[meta]
memory_max_mib = 300

[data]
disks = ["/mnt/d1", "/mnt/d2"]
replaced_disks = ["0102030405060708090a0b0c0d0e0f10"]

[log]
format = "json"
"#;

#[test]
fn a_good_file_gives_all_roles() {
    let config = parse("cairn.toml", GOOD).expect("good");
    assert_eq!(config.manager.member, Some(1));
    assert_eq!(config.manager.members.len(), 3);
    assert!(!config.manager.join);
    assert!(config.meta);
    assert_eq!(config.meta_memory_max, Some(300 << 20));
    let data = config.data.expect("data");
    assert_eq!(data.disks.len(), 2);
    assert_eq!(data.replaced_disks[0].0[..2], [1, 2]);
    assert_eq!((config.node.rack.as_str(), config.node.checkpoint_generations), ("a", 5));
    assert_eq!(config.node.request_log_mib, 0);
    assert!(!config.node.admin_over_tcp, "who says nothing lets nobody in");
    let open = GOOD.replace("rack = \"a\"\n", "rack = \"a\"\nadmin_over_tcp = true\n");
    assert!(parse("cairn.toml", &open).expect("good").node.admin_over_tcp);
    let suggested = GOOD.replace("memory_max_mib = 300\n", "");
    assert_eq!(parse("cairn.toml", &suggested).expect("good").meta_memory_max, None, "what the machine suggests");
    let silent = GOOD.replace("request_log_mib = 0\n", "");
    assert_eq!(parse("cairn.toml", &silent).expect("good").node.request_log_mib, super::REQUEST_LOG_MIB);
}

/// File data would be open to who listens although somebody asked for the opposite.
#[test]
fn file_data_is_as_private_as_the_file_says() {
    let of = |line: &str| parse("cairn.toml", &format!("{GOOD}\n[security]\nkey = \"/k\"\n{line}"));
    let data = |line: &str| of(line).expect("good").security.expect("security").data;
    assert_eq!(data(""), Protection::Authenticated);
    assert_eq!(data("data = \"private\""), Protection::Private);
    let shown = of("data = \"privat\"").expect_err("no such word").to_string();
    assert!(shown.contains("security.data is \"authenticated\" or \"private\""), "{shown}");
}

#[test]
fn a_manager_can_be_told_to_join() {
    let text = GOOD.replace("member = 1\n", "member = 1\njoin = true\n");
    assert!(parse("cairn.toml", &text).expect("good").manager.join);
    let text = GOOD.replace("member = 1\n", "join = true\n");
    let shown = parse("cairn.toml", &text).expect_err("nobody joins").to_string();
    assert!(shown.contains("manager.join is only for a process with manager.member"), "{shown}");
}

#[test]
fn all_mistakes_come_at_once_with_their_lines() {
    let text = r#"
[node]
dir = 7
listn = "10.0.0.1:7400"
checkpoint_generations = 1
[manager]
members = ["one@x:1", "2@10.0.0.2:7400", "2@10.0.0.3:7400"]
member = 3

[date]
x = 1

[data]
disks = ["/a", "/a"]
direct_reads = "yes"
replaced_disks = ["/a"]
"#;
    let errors = parse("c.toml", text).expect_err("bad");
    let shown = errors.to_string();
    for wanted in [
        "line 3: node.dir is a text",
        "line 4: unknown key \"listn\"; did you mean \"listen\"?",
        "line 5: node.checkpoint_generations is a number from 2 to 64",
        "node.listen is missing",
        "line 7: manager.members: \"one@x:1\" is no member",
        "line 7: manager.members names member 2 twice",
        "manager.member is 3, which",
        "line 10: unknown section \"date\"; did you mean \"data\"?",
        "line 14: data.disks names /a twice",
        "line 15: data.direct_reads is true or false",
        "line 16: data.replaced_disks: \"/a\" is no uuid of a disk",
    ] {
        assert!(shown.contains(wanted), "{wanted:?} is not in\n{shown}");
    }
}

#[test]
fn syntax_errors_and_missing_roles_are_told() {
    let shown = parse("c.toml", "[node\ndir = \"/a\"\n").expect_err("bad").to_string();
    assert!(shown.contains("line 1") && !shown.contains("missing"), "{shown}");
    let shown = parse("c.toml", "[foo]\n").expect_err("bad").to_string();
    assert!(shown.contains("unknown section \"foo\"; there are node, "), "{shown}");
    let none = "[node]\ndir = \"/a\"\nlisten = \"h:1\"\n[manager]\nmembers = [\"1@h:1\"]\n";
    assert!(parse("c.toml", none).expect_err("no role").to_string().contains("has no role"));
}

/// A reader copies the example of the reference page; it has to be complete and right.
#[test]
fn the_reference_page_has_every_key_and_its_example_is_valid() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/config.md");
    let page = std::fs::read_to_string(page).expect("docs/reference/config.md");
    let example = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    parse("config.md", example).unwrap_or_else(|errors| panic!("{errors}"));
    for (section, keys) in super::read::SECTIONS {
        for key in *keys {
            assert!(page.contains(&format!("`{section}.{key}`")), "{section}.{key} is not in the table");
            // Behind a `#` what nobody should copy without a thought.
            let shown = [format!("\n{key} = "), format!("\n# {key} = ")];
            assert!(shown.iter().any(|line| example.contains(line)), "{key} is not in the example");
        }
    }
}
