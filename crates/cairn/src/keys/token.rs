//! `cairn key token`: decides on a key and makes a token, with which one machine fetches it (`cairn key enrol`).
use super::{RightsArgs, rights_of};
use crate::server::ServeError;
use cairn_cli::GlobalArgs;
use cairn_security::{Authority, DAY, Revoked, TOKEN_LIFE, Wanted, moment, now};
use cairn_types::NodeId;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::holder::MANAGER_ID_MAX;
use cairn_wire::rights::Rights;
use clap::{ArgGroup, Args};
use std::path::PathBuf;

/// Days for which the key of a server counts unless somebody says otherwise: it is renewed by itself.
const SERVER_DAYS: u64 = 90;
/// The same of a person or a program, which are given their next key by somebody.
const OTHERS_DAYS: u64 = 3650;
/// Shorter ones would end while they are renewed.
const LIFE_MIN: u64 = 30;

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("kind").required(true).multiple(false).args(["roles", "admin", "volumes", "all_volumes", "revoke"]))]
pub struct TokenArgs {
    /// Directory of the authority (cairn key init)
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// Name of the holder, given to nobody else: letters, digits, dots, dashes, underscores
    #[arg(value_name = "NAME")]
    name: String,
    /// The key is a server's, with these roles: manager, meta, data, or several such as meta+data
    #[arg(long, value_name = "ROLES")]
    roles: Option<String>,
    /// Id of the node: of a manager its number among the members, of others as cairn admin node ls shows it
    #[arg(long, value_name = "ID", requires = "roles")]
    node: Option<u32>,
    /// The key is an administrator's
    #[arg(long)]
    admin: bool,
    #[command(flatten)]
    rights: RightsArgs,
    /// The key counts for so long: 90d, 12h; without it 90 days for a server and 3650 for others
    #[arg(long, value_name = "TIME", value_parser = life)]
    life: Option<u64>,
    /// The token counts for so long
    #[arg(long = "for", value_name = "TIME", default_value = "1h", value_parser = time)]
    within: u64,
    /// Take back tokens of this name that nobody has used
    #[arg(long)]
    revoke: bool,
    /// The server had a key of this name, which was lost or ended
    #[arg(long, requires = "roles")]
    replace: bool,
}

/// `90d`, `12h`, `30m`, `45s`, in seconds.
fn time(text: &str) -> Result<u64, String> {
    let unit = match text.bytes().last() {
        Some(b's') => 1,
        Some(b'm') => 60,
        Some(b'h') => TOKEN_LIFE,
        Some(b'd') => DAY,
        _ => return Err("a number and a unit: 90d, 12h, 30m or 45s".to_owned()),
    };
    let number: Option<u64> = text[..text.len() - 1].parse().ok();
    number.and_then(|number| number.checked_mul(unit)).ok_or_else(|| format!("{text:?} is no time"))
}

fn life(text: &str) -> Result<u64, String> {
    let life = time(text)?;
    match life < LIFE_MIN {
        true => Err(format!("a key counts for {LIFE_MIN}s at least: it could not be renewed in time")),
        false => Ok(life),
    }
}

fn take_back(args: &TokenArgs, global: &GlobalArgs) -> Result<(), ServeError> {
    let authority = Authority::open(&args.ca).map_err(anyhow::Error::from)?;
    let taken = authority.take_back(&args.name).map_err(anyhow::Error::from)?;
    let name = &args.name;
    if taken == 0 {
        let why = format!(
            "{name} has no token that nobody has used; if its key was given out (cairn key ls), take that away: cairn admin key revoke {name}"
        );
        return Err(ServeError::Usage(why));
    }
    match global.json {
        true => println!("{}", serde_json::json!({ "name": name, "taken_back": taken })),
        false => println!("{name}: {taken} taken back; no machine gets a key with it any more"),
    }
    Ok(())
}

pub fn run(args: &TokenArgs, global: &GlobalArgs) -> Result<(), ServeError> {
    if args.revoke {
        return take_back(args, global);
    }
    let caller = match &args.roles {
        Some(roles) => Caller::Node(Roles::parse(roles).ok_or_else(|| {
            let why =
                format!("{roles:?} are no roles: manager, meta, data, or several in this order, such as meta+data");
            ServeError::Usage(why)
        })?),
        None if args.admin => Caller::Admin,
        None => Caller::Client,
    };
    if caller != Caller::Client && !args.rights.uids.is_empty() {
        let why = "--uid is of a client's key: a server or an administrator is none of the users";
        return Err(ServeError::Usage(why.to_owned()));
    }
    let is_server = matches!(caller, Caller::Node(_));
    let life = args.life.unwrap_or(DAY * if is_server { SERVER_DAYS } else { OTHERS_DAYS });
    let rights = match caller {
        Caller::Client => rights_of(&args.rights)?,
        _ => Rights::everything(),
    };
    let node = node_of(caller, args.node)?;
    let wanted = Wanted { name: args.name.clone(), caller, node, life, rights, again: args.replace };
    let authority = Authority::open(&args.ca).map_err(anyhow::Error::from)?;
    // Whoever got that key would be refused by all servers. A list elsewhere is known to who serves alone.
    let list = args.ca.join(super::serve::REVOKED);
    if list.exists() && Revoked::read(&list).map_err(anyhow::Error::from)?.has(&args.name) {
        let why = format!("the name {} was revoked ({}): give another one", args.name, list.display());
        return Err(ServeError::Usage(why));
    }
    let token = authority.invite(&wanted, args.within).map_err(anyhow::Error::from)?;
    let until = moment(now().saturating_add(args.within));
    if global.json {
        println!("{}", serde_json::json!({ "token": token.text(), "name": args.name, "until": until }));
        return Ok(());
    }
    // Alone on standard output, so that scripts can take it.
    println!("{}", token.text());
    let to = if is_server { "CONFIG" } else { "--out FILE" };
    eprintln!(
        "good for one machine until {until}, there: cairn key enrol --at HOST:PORT --token - {to}, which reads it from standard input. HOST:PORT is \
         where cairn key serve listens; whoever has the token before that machine becomes {}",
        args.name
    );
    Ok(())
}

fn node_of(caller: Caller, id: Option<u32>) -> Result<NodeId, ServeError> {
    let usage = |why: &str| Err(ServeError::Usage(why.to_owned()));
    let is_manager = matches!(caller, Caller::Node(roles) if roles.meets(Roles::MANAGER));
    match (is_manager, id) {
        (true, Some(id @ 1..=MANAGER_ID_MAX)) => Ok(NodeId(id)),
        (true, _) => {
            usage("the key of a manager is that of one member: say --node N, with the N of manager.member (1 to 15)")
        }
        (false, Some(1..=MANAGER_ID_MAX)) => {
            usage("ids up to 15 are managers': leave --node out, or give the id that cairn admin node ls shows")
        }
        (false, id) => Ok(NodeId(id.unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key would count for another time than was said.
    #[test]
    fn times_have_a_unit() {
        assert_eq!(time("90d"), Ok(7_776_000));
        assert_eq!(time("12h"), Ok(43_200));
        assert_eq!(life("30s"), Ok(30));
        for bad in ["", "90", "d", "-1d", "1.5h", "29s", "999999999999999999d", "1w"] {
            assert!(life(bad).is_err(), "{bad:?}");
        }
    }

    /// A token would make a manager of a data node, or the reverse.
    #[test]
    fn ids_belong_to_roles() {
        let of = |roles: Roles, id| node_of(Caller::Node(roles), id).ok();
        assert_eq!(of(Roles::MANAGER.with(Roles::META), Some(3)), Some(NodeId(3)));
        assert_eq!(of(Roles::DATA, None), Some(NodeId(0)));
        assert_eq!(of(Roles::DATA, Some(16)), Some(NodeId(16)));
        for (roles, id) in [(Roles::MANAGER, None), (Roles::MANAGER, Some(16)), (Roles::DATA, Some(15))] {
            assert_eq!(of(roles, id), None, "{roles} {id:?}");
        }
    }
}
