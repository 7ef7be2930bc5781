//! How long the sentences of a page are. Tables, headings and code are no sentences; a list item begins a new one.

/// What the sentences of a page may have at most, in words, on average.
const WORDS: usize = 20;

/// Says by how much the sentences of a page are too long, if they are.
pub fn too_long(text: &str) -> Option<String> {
    let lengths = lengths(text);
    let words: usize = lengths.iter().sum();
    (words > WORDS * lengths.len()).then(|| {
        format!("its sentences have {:.1} words on average; {WORDS} are the limit", words as f64 / lengths.len() as f64)
    })
}

/// Words of each sentence.
fn lengths(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut words = 0;
    let mut end = |words: &mut usize| {
        found.extend((*words > 0).then_some(*words));
        *words = 0;
    };
    let mut code = false;
    for line in text.lines() {
        let mut line = line.trim();
        let fence = line.starts_with("```");
        if fence || code || line.is_empty() || line.starts_with(['|', '#']) {
            code ^= fence;
            end(&mut words);
            continue;
        }
        let numbered = line.split_once(". ").filter(|(number, _)| number.parse::<u32>().is_ok());
        if let Some(item) = line.strip_prefix("- ").or(numbered.map(|(_, item)| item)) {
            end(&mut words);
            line = item;
        }
        for word in line.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)) {
            words += 1;
            if word.trim_end_matches([')', '*', '"']).ends_with(['.', '!', '?']) {
                end(&mut words);
            }
        }
    }
    end(&mut words);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a page of one long sentence passes, or a table and a listing make a page fail.
    #[test]
    fn sentences_are_told_from_tables_and_code() {
        let page = "# A title of some words\n\nOne two three. Four\nfive (six).\n\n- Seven eight\n- nine\n\n\
                    | a | b c d e |\n\n```sh\nls -l a b c d e f\n```\nThe file `a.b` is ten.\n1. Eleven\n";
        assert_eq!(lengths(page), [3, 3, 2, 1, 5, 1]);
        assert_eq!(too_long(page), None);
        assert!(too_long(&"word ".repeat(21)).is_some_and(|why| why.contains("21.0 words")));
    }
}
