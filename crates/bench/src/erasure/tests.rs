//! That it measures what it says, not how fast.
use super::*;
use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ErasureArgs,
}

fn args(line: &str) -> ErasureArgs {
    Cli::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).unwrap().args
}

fn rows(line: &str) -> anyhow::Result<Vec<ErasureRow>> {
    let mut rows = Vec::new();
    measure(&args(line), |row| rows.push(row))?;
    Ok(rows)
}

#[test]
fn each_combination_is_a_row() {
    let line = "--scheme rs-3-2,rs-4-2 --shard 4k --kernel portable,best --from cache --seconds 0.001 --rounds 3";
    let rows = rows(line).unwrap();
    assert_eq!(rows.len(), 2 * 2 * 3);
    assert!(rows.iter().all(|row| row.gb_per_second > 0.0 && row.shard_bytes == 4096));
    let work: Vec<&str> = rows[..3].iter().map(|row| row.work.as_str()).collect();
    assert_eq!(work, ["encode", "decode-1", "decode-2"]);
}

#[test]
fn the_defaults_are_all_schemes_kernels_and_places() {
    let args = args("");
    assert_eq!((args.schemes.len(), args.shards.len(), args.work.len(), args.from.len()), (5, 2, 3, 2));
    assert_eq!(kernels(&args.kernels).unwrap(), Kernel::available());
}

#[test]
fn what_cannot_be_measured_is_said() {
    let error = |line: &str| rows(line).unwrap_err().to_string();
    assert_eq!(error("--scheme r3"), "r3 keeps copies, it has no shards to compute");
    assert!(error("--kernel avx3").starts_with("\"avx3\" is no kernel; there are portable,"));
    assert!(error("--shard 1t").contains("between 1 byte and"));
    assert!(error("--rounds 0").contains("more than 0"));
}
