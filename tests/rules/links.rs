//! The pages for people: each link leads to a file and a heading that are there, and a page that is read in one sitting stays so short.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Component, Path, PathBuf},
};

use crate::{root, style::files};

/// The largest size of a page in bytes, by its path or its directory. A page that grows beyond it is split.
const SIZES: [(&str, usize); 2] = [("README.md", 12_000), ("cluster-configs", 15_000)];

/// All Markdown pages of the repository, by their paths from its root. Packages that a script has installed have pages of their own.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut pages = files(&[".github", "cluster-configs", "proto", "src", "tests"], "md");
    pages.retain(|path, _| !path.components().any(|part| part.as_os_str() == "node_modules"));

    for name in ["CHANGELOG.md", "README.md"] {
        pages.insert(name.into(), fs::read_to_string(root().join(name)).expect("every repository has it"));
    }
    pages
}

/// The lines of a page that are no code.
fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    page.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The anchors of the headings of a page, as forges make them: a heading that is there twice gets a number.
fn anchors(page: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(page).filter(|(_, line)| line.starts_with('#')) {
        let heading = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let anchor: String = heading.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();

        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = [anchor.clone()].into_iter().chain(numbered).find(|anchor| !anchors.contains(anchor));
        anchors.extend(free);
    }
    anchors
}

/// The targets of the links of a page that lead into the repository, each with its line. A link may begin in one line and end in the next.
fn targets(page: &str) -> Vec<(usize, String)> {
    let found = prose(page).flat_map(|(number, line)| {
        let links = line.split("](").skip(1);
        links.filter_map(move |link| Some((number + 1, link.split_once(')')?.0.to_owned())))
    });
    found.filter(|(_, target)| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::Normal(name) => normal.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    normal
}

/// Why a link of this page leads nowhere. `None`: it leads somewhere.
fn broken(pages: &BTreeMap<PathBuf, String>, page: &Path, target: &str) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { page.to_owned() } else { normal(&page.with_file_name("").join(file)) };

    if !root().join(&path).exists() {
        return Some(format!("there is no {}", path.display()));
    }
    if anchor.is_empty() {
        return None;
    }

    let Some(text) = pages.get(&path) else { return Some(format!("{} is no page with headings", path.display())) };
    (!anchors(text).contains(anchor)).then(|| format!("{} has no heading #{anchor}", path.display()))
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let pages = pages();
    let mut links = 0;
    let mut wrong = Vec::new();
    for (path, text) in &pages {
        for (line, target) in targets(text) {
            links += 1;
            wrong.extend(broken(&pages, path, &target).map(|why| format!("{}:{line}: {why}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(links > 150, "only {links} links: the search no longer finds them");
}

#[test]
fn pages_stay_short_enough_to_be_read() {
    let pages = pages();
    for (place, size_max) in SIZES {
        let is_there = |path: &&PathBuf| path.as_path() == Path::new(place) || path.parent() == Some(Path::new(place));
        let mut paths = pages.keys().filter(is_there).peekable();
        assert!(paths.peek().is_some(), "there is no page {place}");
        for path in paths {
            let size = pages[path].len();
            assert!(size <= size_max, "{} has {size} bytes, more than {size_max}: split it", path.display());
        }
    }
}

#[test]
fn a_link_to_nothing_is_found() {
    let page = "# A page\n\n## What it *is*\n## Twice\n## Twice\n```sh\n# no heading\n[no](link.md)\n```\n[a](#b) and [c](d.md#e)\n";
    assert_eq!(anchors(page), BTreeSet::from(["a-page", "twice", "twice-1", "what-it-is"].map(str::to_owned)));
    assert_eq!(targets(page), [(10, "#b".to_owned()), (10, "d.md#e".to_owned())]);

    let pages = BTreeMap::from([("src/README.md".into(), page.to_owned())]);
    let at = Path::new("src/README.md");
    for good in ["#what-it-is", "README.md#twice-1", "../README.md", "../src/main.rs"] {
        assert_eq!(broken(&pages, at, good), None, "{good}");
    }
    for bad in ["#e", "missing.md", "../missing", "../src/main.rs#a"] {
        assert!(broken(&pages, at, bad).is_some(), "{bad}");
    }
}
