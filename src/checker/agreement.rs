//! Agreement: all nodes have the same table at the same index, and no term has two leaders.

use std::{collections::HashMap, fmt};

use super::{
    run::Run,
    verdict::{Evidence, Finding, Investigation, Property},
};
use crate::history::Fact;

enum Disagree {
    Tables { index: u64, nodes: [u64; 2], lines: [usize; 2] },
    Leaders { term: u64, nodes: [u64; 2], lines: [usize; 2] },
}

impl fmt::Display for Disagree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tables { index, nodes: [a, b], .. } if a == b => {
                write!(f, "node {a} had two tables at index {index}")
            }
            Self::Tables { index, nodes: [a, b], .. } => {
                write!(f, "nodes {a} and {b} have different tables at index {index}")
            }
            Self::Leaders { term, nodes: [a, b], .. } => {
                write!(f, "nodes {a} and {b} were both leader of term {term}")
            }
        }
    }
}

impl Evidence for Disagree {
    fn lines(&self) -> Vec<usize> {
        match self {
            Self::Tables { lines, .. } | Self::Leaders { lines, .. } => lines.to_vec(),
        }
    }
}

pub(super) fn check(run: &Run<'_>) -> Finding {
    let mut investigation = Investigation::new(Property::Agreement);
    investigation.count("tables compared", 0);
    let mut tables: HashMap<u64, (u64, u64, usize)> = HashMap::new();
    let mut leaders: HashMap<u64, (u64, usize)> = HashMap::new();

    for told in &run.facts {
        if let Fact::Table { node, index, hash } = told.fact {
            let (first_hash, first, line) = *tables.entry(*index).or_insert((*hash, *node, told.line));
            if line != told.line {
                investigation.count("tables compared", 1);
            }
            if first_hash != *hash {
                let nodes = [first, *node];
                let lines = [line, told.line];
                investigation.report(&Disagree::Tables { index: *index, nodes, lines });
            }
        } else if let Fact::Elected { node, term } = told.fact {
            investigation.count("elections", 1);
            let (first, line) = *leaders.entry(*term).or_insert((*node, told.line));
            if first != *node {
                let nodes = [first, *node];
                let lines = [line, told.line];
                investigation.report(&Disagree::Leaders { term: *term, nodes, lines });
            }
        } else if let Fact::SnapshotInstalled { .. } = told.fact {
            investigation.count("snapshots installed", 1);
        }
    }

    investigation.close()
}
