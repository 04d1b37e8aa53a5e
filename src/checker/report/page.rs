//! The page: frame, style, scripts and data in one file.

use serde::Serialize;

use super::{ReportDocument, timeline::Timeline};

const FRAME: &str = include_str!("page.html");
const LOOKS: &str = include_str!("page.css");
const SCRIPTS: [&str; 5] = [
    include_str!("page_data.js"),
    include_str!("page_draw.js"),
    include_str!("page_view.js"),
    include_str!("page_input.js"),
    include_str!("page_texts.js"),
];

#[derive(Serialize)]
struct PageData<'a> {
    report: &'a ReportDocument<'a>,
    timeline: &'a Timeline,
}

pub(super) fn page(report: &ReportDocument<'_>, timeline: &Timeline) -> String {
    let data = PageData { report, timeline };
    let data = serde_json::to_string(&data).expect("it has no map whose keys are not strings");
    let scripts = SCRIPTS.join("\n");
    let parts = [("/*LOOKS*/", LOOKS), ("/*DATA*/", &harmless(&data)), ("/*SCRIPT*/", &scripts)];

    let mut page = String::with_capacity(data.len() + scripts.len() + FRAME.len());
    let mut rest = FRAME;
    // Search each placeholder only after the parts inserted before, so that the contents of a part cannot contain one.
    for (place, part) in parts {
        let (before, after) = rest.split_once(place).expect("the frame has a place for each part, in this order");
        page.push_str(before);
        page.push_str(part);
        rest = after;
    }
    page.push_str(rest);
    page
}

/// Escapes JSON so that no name in it can end the script element. Outside of strings, JSON has none of these characters.
fn harmless(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}
