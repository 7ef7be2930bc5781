//! The key of a node: whether it can be used, who else can, and for how long it counts.
use super::Finding;
use crate::config::Config;
use crate::security::roles_of;
use cairn_security::{KeyFile, Revoked, WARN_DAYS, date};
use cairn_wire::audience::Caller;
use cairn_wire::holder::MANAGER_ID_MAX;

const NO_START: &str = "the server does not start like this";

/// Looks at the key that a configuration names.
pub fn look(config: &Config) -> Option<Finding> {
    let security = config.security.as_ref()?;
    let path = &security.key;
    if let Some(Err(error)) = security.revoked.as_deref().map(Revoked::read) {
        let what = format!("the list of revoked keys: {error}");
        return Some(Finding::bad(
            "key",
            what,
            NO_START,
            "make the file that security.revoked names; an empty one revokes nothing",
        ));
    }
    let file = match KeyFile::read(path) {
        Ok(file) => file,
        Err(error) => return Some(Finding::bad("key", error.to_string(), NO_START, "what the line above says")),
    };
    let (holder, left) = (file.holder(), file.days_left());
    let wanted = roles_of(config.manager.member.is_some(), config.meta, config.data.is_some());
    let fits = matches!(holder.caller, Caller::Node(roles) if roles.covers(wanted))
        && match config.manager.member {
            Some(member) => holder.node.get() == member,
            None => holder.node.get() == 0 || holder.node.get() > MANAGER_ID_MAX,
        };
    let what =
        format!("{} is the key of {} {}, until {}", path.display(), holder.kind(), holder.name, date(holder.until));
    Some(match (fits, left < WARN_DAYS) {
        (false, _) => Finding::bad(
            "key",
            format!("{what}, and not one for this configuration"),
            NO_START,
            "cairn key node --replace",
        ),
        (true, true) => Finding::warning(
            "key",
            format!("{what}, in {left} days"),
            "then nobody speaks to this node",
            "cairn key node --replace, then start the node anew",
        ),
        (true, false) => Finding::good("key", what),
    })
}
