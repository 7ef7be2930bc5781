//! How lists and counts are said in texts for people.

/// The first of them, and how many more there are.
pub fn names_up_to(most: usize, items: impl IntoIterator<Item = String>) -> String {
    let all: Vec<String> = items.into_iter().collect();
    let more = all.len().saturating_sub(most);
    let mut text = all.into_iter().take(most).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// In numbers and words.
pub(crate) fn groups(count: usize) -> String {
    if count == 1 { "1 placement group".into() } else { format!("{count} placement groups") }
}
