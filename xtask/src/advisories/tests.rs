//! The advisory check on locks that it must refuse, and on those that it must let through.

use super::*;

const LIST: &str = r#"
considered_to = "2026-11-21"
[[advisory]]
id = "RUSTSEC-2025-0023"
crate = "tokio"
affected = ["<1.38.2", ">=1.39.0, <1.43.1", ">=1.44.0, <1.44.2"]
reason = "broadcast"
[[advisory]]
id = "RUSTSEC-2025-0057"
crate = "fxhash"
affected = ["*"]
reason = "unmaintained"
"#;

fn findings_for(lock: &str, ignored: &[&str]) -> Findings {
    let (_, advisories) = parse_list(LIST).expect("the list is sound");
    let locked = parse_lock(lock).expect("the lock is sound");
    let ignored_advisories = ignored
        .iter()
        .map(|id| crate::deny::IgnoredAdvisory { id: id.to_string(), reason: "known".to_string() })
        .collect();
    let policy = Policy { licences: Vec::new(), licence_exceptions: Vec::new(), ignored_advisories };
    let mut findings = Findings::default();
    judge(&advisories, &locked, &policy, &mut findings).expect("the versions are sound");
    findings
}

fn lock(package: &str, version: &str) -> String {
    format!("version = 4\n[[package]]\nname = \"{package}\"\nversion = \"{version}\"\n")
}

#[test]
fn an_affected_version_fails() {
    for version in ["1.30.0", "1.39.0", "1.43.0", "1.44.1", "1.44.1-rc.1"] {
        assert_eq!(findings_for(&lock("tokio", version), &[]).failures.len(), 1, "{version}");
    }
    assert_eq!(findings_for(&lock("fxhash", "0.2.1"), &[]).failures.len(), 1);
}

#[test]
fn a_mended_version_and_other_packages_pass() {
    for version in ["1.38.2", "1.43.1", "1.44.2", "1.54.1+build.7"] {
        assert!(findings_for(&lock("tokio", version), &[]).failures.is_empty(), "{version}");
    }
    assert!(findings_for(&lock("tokio-util", "0.1.0"), &[]).failures.is_empty());
}

#[test]
fn an_accepted_advisory_is_a_note_and_never_silent() {
    let findings = findings_for(&lock("fxhash", "0.2.1"), &["RUSTSEC-2025-0057"]);
    assert!(findings.failures.is_empty() && findings.notes.len() == 1, "{findings:?}");
}

#[test]
fn an_acceptance_without_its_cause_shows() {
    assert_eq!(findings_for(&lock("tokio", "1.50.0"), &["RUSTSEC-2025-0057"]).warnings.len(), 1);
    assert_eq!(findings_for(&lock("tokio", "1.50.0"), &["RUSTSEC-2020-0001"]).failures.len(), 1);
}

#[test]
fn a_list_that_would_match_nothing_by_mistake_is_refused() {
    for affected in ["[]", "[\"1.2.3\"]", "[\"<1.2\"]", "[\"<x\"]", "[7]"] {
        let text = format!(
            "considered_to = \"x\"\n[[advisory]]\nid = \"R\"\ncrate = \"c\"\nreason = \"r\"\naffected = {affected}\n"
        );
        assert!(parse_list(&text).is_err(), "{affected}");
    }
}

#[test]
fn the_list_of_the_project_is_readable() {
    let (_, advisories) = parse_list(include_str!("../../advisories.toml")).expect("xtask/advisories.toml is sound");
    for (index, advisory) in advisories.iter().enumerate() {
        assert!(advisories[..index].iter().all(|other| other.id != advisory.id), "{} stands twice", advisory.id);
    }
}
