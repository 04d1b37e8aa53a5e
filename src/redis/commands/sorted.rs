//! Sorted sets: semaphores with deadlines as scores, queues of waiters.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    arguments::{Arguments, CommandResult, double, integer, is_word, not_an_integer, positive, slice, syntax_error},
    copies::{bulk, bulks},
    keys::{ScanOptions, scan_cursor},
    lists::timeout_seconds,
};
use crate::{
    RedisReply,
    data::{DatumKind, Score, SetMembers, SortedMembers},
    number::{format_double, parse_bound, parse_double},
    view::{Stop, UnitView},
};

/// Makes a score of the result of a sum.
fn score(number: f64) -> Result<Score, Stop> {
    Score::new(number).ok_or_else(|| Stop::refused("ERR resulting score is not a number (NaN)"))
}

/// A member and its score in a reply.
fn pair(view: &mut UnitView, member: &[u8], score: Score) -> Result<(RedisReply, RedisReply), Stop> {
    Ok((bulk(view, member)?, score_reply(score)))
}

/// A score in a reply.
fn score_reply(score: Score) -> RedisReply {
    RedisReply::Double(score.number())
}

/// The options of ZADD.
#[derive(Clone, Copy, Debug, Default)]
struct AddOptions {
    /// NX: only new members.
    if_absent: bool,
    /// XX: only members that are there.
    if_present: bool,
    /// GT: only greater scores; new members are added all the same.
    if_greater: bool,
    /// LT: only lesser scores; new members are added all the same.
    if_less: bool,
    /// CH: the reply counts changed members as well as new ones.
    counts_changed: bool,
    /// INCR: adds to the score, and answers with it.
    increments: bool,
}

impl AddOptions {
    /// Reads the options before the first score. Returns them and what follows.
    fn read<'a, 'b>(arguments: &'a [&'b [u8]]) -> (Self, &'a [&'b [u8]]) {
        let mut read = Self::default();
        let mut rest = arguments;

        while let Some((option, after)) = rest.split_first() {
            match option.to_ascii_uppercase().as_slice() {
                b"NX" => read.if_absent = true,
                b"XX" => read.if_present = true,
                b"GT" => read.if_greater = true,
                b"LT" => read.if_less = true,
                b"CH" => read.counts_changed = true,
                b"INCR" => read.increments = true,
                _ => break,
            }
            rest = after;
        }
        (read, rest)
    }

    /// Refuses options that cannot be together, with the texts of Redis.
    fn check(&self, pairs: usize) -> Result<(), Stop> {
        let has_order = self.if_greater || self.if_less;
        if self.if_absent && self.if_present {
            return Err(Stop::refused("ERR XX and NX options at the same time are not compatible"));
        }
        if self.if_greater && self.if_less || has_order && self.if_absent {
            return Err(Stop::refused("ERR GT, LT, and/or NX options at the same time are not compatible"));
        }
        if self.increments && pairs > 1 {
            return Err(Stop::refused("ERR INCR option supports a single increment-element pair"));
        }
        Ok(())
    }

    /// The new score of a member; none if it is left as it is.
    fn new_score(&self, before: Option<Score>, given: f64) -> Result<Option<Score>, Stop> {
        let Some(before) = before else {
            return if self.if_present { Ok(None) } else { score(given).map(Some) };
        };
        if self.if_absent {
            return Ok(None);
        }
        let new = score(if self.increments { before.number() + given } else { given })?;
        let is_refused = self.if_greater && new <= before || self.if_less && new >= before;
        Ok((!is_refused).then_some(new))
    }
}

/// Serves `ZADD key [options] score member …`: the number of new members; with INCR the new score, or nil.
pub(super) fn add(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let (options, pairs) = AddOptions::read(&arguments[2..]);
    if pairs.is_empty() || pairs.len() % 2 == 1 {
        return Err(syntax_error());
    }
    options.check(pairs.len() / 2)?;
    view.count_written(pairs.iter().map(|part| part.len() + 8).sum())?;
    let scores = pairs.chunks(2).map(|pair| double(pair[0])).collect::<Result<Vec<_>, _>>()?;
    let present = view.read::<SortedMembers>(arguments[1])?;

    // The new scores are known before anything changes: an error leaves the key as it was.
    let mut new_scores: BTreeMap<&[u8], Score> = BTreeMap::new();
    let mut added = 0;
    let mut changed = 0;
    let mut last = None;
    for (given, member) in scores.into_iter().zip(pairs.chunks(2).map(|pair| pair[1])) {
        let before = new_scores.get(member).copied().or_else(|| present.score(member));
        last = options.new_score(before, given)?;
        let Some(new) = last else { continue };
        added += usize::from(before.is_none());
        changed += usize::from(before.is_some_and(|before| before != new));
        if before != Some(new) {
            new_scores.insert(member, new);
        }
    }

    drop(present);
    if !new_scores.is_empty() {
        let mut members = view.take::<SortedMembers>(arguments[1])?;
        for (member, score) in &new_scores {
            members.set(member, *score);
        }
        view.put_back(arguments[1], members)?;
    }
    if options.increments {
        return Ok(last.map_or(RedisReply::Nil, |score| RedisReply::Double(score.number())));
    }
    Ok(RedisReply::count(added + if options.counts_changed { changed } else { 0 }))
}

/// Serves `ZINCRBY key number member`: the new score.
pub(super) fn increment(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let by = double(arguments[2])?;
    let before = view.read::<SortedMembers>(arguments[1])?.score(arguments[3]);
    let new = score(before.map_or(0.0, Score::number) + by)?;
    view.count_written(arguments[3].len() + 8)?;
    let mut members = view.take::<SortedMembers>(arguments[1])?;
    members.set(arguments[3], new);
    view.put_back(arguments[1], members)?;
    Ok(RedisReply::Double(new.number()))
}

/// Serves `ZREM key member …`: the number of members that were there.
pub(super) fn remove(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let gone = arguments[2..].iter().map(|member| member.to_vec()).collect();
    remove_all(view, arguments[1], gone)
}

/// Removes those of some members that are there, and answers with their number.
fn remove_all(view: &mut UnitView, key: &[u8], gone: Vec<Vec<u8>>) -> CommandResult {
    let present = view.read::<SortedMembers>(key)?;
    if !gone.iter().any(|member| present.score(member).is_some()) {
        return Ok(RedisReply::Integer(0));
    }
    drop(present);
    let mut members = view.take::<SortedMembers>(key)?;
    let removed = gone.iter().filter(|member| members.remove(member)).count();
    view.put_back(key, members)?;
    Ok(RedisReply::count(removed))
}

/// Serves `ZSCORE key member`: the score, or nil.
pub(super) fn score_of_member(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    view.score(arguments[1], arguments[2]).map(double_or_nil)
}

/// Serves `ZMSCORE key member …`: a score or nil for each.
pub(super) fn scores(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let members = view.read::<SortedMembers>(arguments[1])?;
    Ok(RedisReply::Array(arguments[2..].iter().map(|member| double_or_nil(members.score(member))).collect()))
}

/// A score in a reply, or nil.
fn double_or_nil(score: Option<Score>) -> RedisReply {
    score.map_or(RedisReply::Nil, score_reply)
}

/// Serves `ZCARD key`: the number of members.
pub(super) fn length(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    view.part_count::<SortedMembers>(arguments[1]).map(RedisReply::count)
}

/// Bounds of scores.
#[derive(Clone, Copy, Debug)]
struct ScoreRange {
    /// The lower bound.
    min: ScoreBound,
    /// The upper bound.
    max: ScoreBound,
}

/// A bound of scores. An exclusive one is written with a `(` before it.
#[derive(Clone, Copy, Debug)]
struct ScoreBound {
    /// The bound itself, which may be infinite.
    number: f64,
    /// Whether scores that are equal to it are outside.
    is_exclusive: bool,
}

impl ScoreRange {
    /// Reads two bounds.
    fn read(min: &[u8], max: &[u8]) -> Result<Self, Stop> {
        Ok(Self { min: ScoreBound::read(min)?, max: ScoreBound::read(max)? })
    }

    /// Whether a score is within both bounds.
    fn contains(&self, score: Score) -> bool {
        let number = score.number();
        let Self { min, max } = self;
        let is_above = if min.is_exclusive { number > min.number } else { number >= min.number };
        let is_below = if max.is_exclusive { number < max.number } else { number <= max.number };
        is_above && is_below
    }
}

impl ScoreBound {
    /// Reads a bound such as `5`, `(5` and `-inf`.
    fn read(argument: &[u8]) -> Result<Self, Stop> {
        let number = argument.strip_prefix(b"(");
        let is_exclusive = number.is_some();
        let number = parse_bound(number.unwrap_or(argument));
        let number = number.ok_or_else(|| Stop::refused("ERR min or max is not a float"))?;
        Ok(Self { number, is_exclusive })
    }
}

/// Serves `ZCOUNT key min max`: the number of members between.
pub(super) fn count(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let range = ScoreRange::read(arguments[2], arguments[3])?;
    let members = view.read::<SortedMembers>(arguments[1])?;
    view.spend(members.len())?;
    Ok(RedisReply::count(members.in_order().filter(|(_, score)| range.contains(*score)).count()))
}

/// What a command of the family of ZRANGE says by its name.
#[derive(Clone, Copy, Debug, Default)]
struct RangeForm {
    /// Whether its options may choose ranks or scores, and the direction.
    is_open: bool,
    /// The bounds are scores, and not ranks.
    by_score: bool,
    /// The greatest score comes first.
    is_reverse: bool,
}

/// Serves `ZRANGE key start end` with REV, BYSCORE, LIMIT and WITHSCORES.
pub(super) fn range(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    range_in_form(view, arguments, RangeForm { is_open: true, ..RangeForm::default() })
}

/// Serves `ZREVRANGE key start end`.
pub(super) fn reverse_range(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    range_in_form(view, arguments, RangeForm { is_reverse: true, ..RangeForm::default() })
}

/// Serves `ZRANGEBYSCORE key min max`.
pub(super) fn range_by_score(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    range_in_form(view, arguments, RangeForm { by_score: true, ..RangeForm::default() })
}

/// Serves `ZREVRANGEBYSCORE key max min`.
pub(super) fn reverse_range_by_score(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    range_in_form(view, arguments, RangeForm { is_open: false, by_score: true, is_reverse: true })
}

/// The options of ZRANGE and its relatives.
struct RangeOptions {
    /// What the name and the options say together.
    form: RangeForm,
    /// WITHSCORES: each member with its score.
    with_scores: bool,
    /// The offset of LIMIT: the number of elements to skip. A negative number skips all.
    offset: i64,
    /// The count of LIMIT: the number of elements to show. A negative number shows all.
    limit: i64,
}

impl RangeOptions {
    /// Reads the options that the name of the command leaves open.
    fn read(options: &Arguments<'_>, form: RangeForm) -> Result<Self, Stop> {
        let mut read = Self { form, with_scores: false, offset: 0, limit: -1 };
        let mut rest = options;
        while let Some((option, after)) = rest.split_first() {
            rest = after;
            if is_word(option, "WITHSCORES") {
                read.with_scores = true;
            } else if is_word(option, "LIMIT")
                && let [offset, limit, after @ ..] = rest
            {
                read.offset = integer(offset)?;
                read.limit = integer(limit)?;
                rest = after;
            } else if form.is_open && is_word(option, "REV") {
                read.form.is_reverse = true;
            } else if form.is_open && is_word(option, "BYSCORE") {
                read.form.by_score = true;
            } else if form.is_open && is_word(option, "BYLEX") {
                return Err(Stop::refused("ERR BYLEX is not served by Lockkeeper: use ranks or BYSCORE"));
            } else {
                return Err(syntax_error());
            }
        }

        if read.limit != -1 && !read.form.by_score {
            return Err(Stop::refused(
                "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX",
            ));
        }
        Ok(read)
    }
}

/// Serves the whole family of ZRANGE.
fn range_in_form(view: &mut UnitView, arguments: &Arguments<'_>, form: RangeForm) -> CommandResult {
    let options = RangeOptions::read(&arguments[4..], form)?;
    let is_reverse = options.form.is_reverse;
    let members;
    let shown: Vec<(&Vec<u8>, Score)> = if options.form.by_score {
        // A reverse range names the greater bound first.
        let [min, max] = if is_reverse { [arguments[3], arguments[2]] } else { [arguments[2], arguments[3]] };
        let range = ScoreRange::read(min, max)?;
        members = view.read::<SortedMembers>(arguments[1])?;
        view.spend(members.len())?;

        let within = directed(&members, is_reverse).into_iter().filter(|(_, score)| range.contains(*score));
        let limit = usize::try_from(options.limit).unwrap_or(usize::MAX);
        match usize::try_from(options.offset) {
            Ok(offset) => within.skip(offset).take(limit).collect(),
            Err(_) => Vec::new(),
        }
    } else {
        let start = integer(arguments[2])?;
        let end = integer(arguments[3])?;
        members = view.read::<SortedMembers>(arguments[1])?;
        view.spend(members.len())?;
        let places = slice(start, end, members.len());
        directed(&members, is_reverse)[places].to_vec()
    };

    if options.with_scores {
        let pairs = shown.into_iter().map(|(member, score)| pair(view, member, score));
        return pairs.collect::<Result<_, _>>().map(RedisReply::Pairs);
    }
    bulks(view, shown.into_iter().map(|(member, _)| member)).map(RedisReply::Array)
}

/// All members, from one end or the other.
fn directed(members: &SortedMembers, is_reverse: bool) -> Vec<(&Vec<u8>, Score)> {
    if is_reverse { members.in_order().rev().collect() } else { members.in_order().collect() }
}

/// Serves `ZREMRANGEBYSCORE key min max`: the number of members that are gone.
pub(super) fn remove_by_score(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let range = ScoreRange::read(arguments[2], arguments[3])?;
    let members = view.read::<SortedMembers>(arguments[1])?;
    view.spend(members.len())?;
    let gone = members.in_order().filter(|(_, score)| range.contains(*score)).map(|(member, _)| member.clone());
    remove_all(view, arguments[1], gone.collect())
}

/// Serves `ZREMRANGEBYRANK key start end`: the number of members that are gone.
pub(super) fn remove_by_rank(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    let start = integer(arguments[2])?;
    let end = integer(arguments[3])?;
    let members = view.read::<SortedMembers>(arguments[1])?;
    view.spend(members.len())?;
    let places = slice(start, end, members.len());
    let gone = members.in_order().skip(places.start).take(places.len()).map(|(member, _)| member.clone());
    remove_all(view, arguments[1], gone.collect())
}

/// Serves `ZRANK key member`: the number of members with lower scores, or nil.
pub(super) fn rank(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    rank_from(view, arguments, false)
}

/// Serves `ZREVRANK key member`.
pub(super) fn reverse_rank(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    rank_from(view, arguments, true)
}

/// The rank of a member from one end.
fn rank_from(view: &mut UnitView, arguments: &Arguments<'_>, is_reverse: bool) -> CommandResult {
    let members = view.read::<SortedMembers>(arguments[1])?;
    view.spend(members.len())?;
    let rank = members.rank(arguments[2]);
    let rank = rank.map(|rank| if is_reverse { members.len() - 1 - rank } else { rank });
    Ok(rank.map_or(RedisReply::Nil, RedisReply::count))
}

/// Serves `ZPOPMIN key [count]`: members with the least scores, which are gone then.
pub(super) fn pop_least(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    pop(view, arguments, false)
}

/// Serves `ZPOPMAX key [count]`.
pub(super) fn pop_greatest(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    pop(view, arguments, true)
}

/// Takes members at an end. With a count, each is a pair in the third version of the protocol.
fn pop(view: &mut UnitView, arguments: &Arguments<'_>, is_greatest: bool) -> CommandResult {
    if arguments.len() > 3 {
        return Err(syntax_error());
    }
    let count = arguments.get(2).map(|count| positive(count)).transpose()?;
    let popped = take_ends(view, arguments[1], count.unwrap_or(1), is_greatest)?;
    let pairs: Vec<_> =
        popped.into_iter().map(|(member, score)| (RedisReply::Bulk(member), score_reply(score))).collect();
    if count.is_some() {
        return Ok(RedisReply::Pairs(pairs));
    }
    Ok(RedisReply::Array(pairs.into_iter().flat_map(|(member, score)| [member, score]).collect()))
}

/// Removes the members with the least or greatest scores.
fn take_ends(view: &mut UnitView, key: &[u8], count: usize, is_greatest: bool) -> Result<Vec<(Vec<u8>, Score)>, Stop> {
    let members = view.read::<SortedMembers>(key)?;
    view.spend(members.len())?;
    let ends = directed(&members, is_greatest).into_iter().take(count);
    let ends = ends.map(|(member, score)| Ok((view.copy(member)?, score))).collect::<Result<Vec<_>, Stop>>()?;
    drop(members);

    if !ends.is_empty() {
        let mut members = view.take::<SortedMembers>(key)?;
        for (member, _) in &ends {
            members.remove(member);
        }
        view.put_back(key, members)?;
    }
    Ok(ends)
}

/// Serves one try of `BZPOPMIN key … timeout`.
pub(super) fn blocking_pop_least(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    pop_first(view, arguments, false)
}

/// Serves one try of `BZPOPMAX key … timeout`.
pub(super) fn blocking_pop_greatest(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    pop_first(view, arguments, true)
}

/// One try of a blocking pop: the first sorted set that has a member gives it. Without one the reply is nil, as within a transaction.
fn pop_first(view: &mut UnitView, arguments: &Arguments<'_>, is_greatest: bool) -> CommandResult {
    let (timeout, keys) = arguments[1..].split_last().expect("the arity is checked");
    timeout_seconds(timeout)?;
    for key in keys {
        let popped = take_ends(view, key, 1, is_greatest)?;
        if let Some((member, score)) = popped.into_iter().next() {
            let parts = vec![RedisReply::Bulk(key.to_vec()), RedisReply::Bulk(member), score_reply(score)];
            return Ok(RedisReply::Array(parts));
        }
    }
    Ok(RedisReply::NilArray)
}

/// Serves `ZSCAN key cursor`: all members in one step, as Redis does with small sets.
pub(super) fn scan(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    scan_cursor(arguments[2])?;
    let members = view.read::<SortedMembers>(arguments[1])?;
    let options = ScanOptions::read_for_parts(&arguments[3..], members.len())?;
    view.spend(members.in_order().map(|(member, _)| options.work(member)).sum())?;

    let shown = members.in_order().filter(|(member, _)| options.shows(member));
    // The scores are strings in both versions of the protocol.
    let pairs = shown.map(|(member, score)| Ok([bulk(view, member)?, RedisReply::text(format_double(score.number()))]));
    let pairs = pairs.collect::<Result<Vec<_>, Stop>>()?;
    let parts = pairs.into_iter().flatten().collect();
    Ok(RedisReply::Array(vec![RedisReply::text("0"), RedisReply::Array(parts)]))
}

/// How scores of one member in several sets are brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregate {
    /// SUM: their sum.
    Sum,
    /// MIN: the least of them.
    Min,
    /// MAX: the greatest of them.
    Max,
}

impl Aggregate {
    /// Brings two scores together.
    fn join(self, one: f64, other: f64) -> f64 {
        match self {
            Self::Sum => or_zero(one + other),
            // Not-a-number is neither less nor greater, so the first one stays.
            Self::Min => one.min(other),
            Self::Max => one.max(other),
        }
    }
}

/// Infinities of both signs are zero together, and so is an infinity without weight.
fn or_zero(number: f64) -> f64 {
    if number.is_nan() { 0.0 } else { number }
}

/// Serves `ZINTERSTORE target count key …`: the number of members that all sources have.
pub(super) fn store_intersection(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    store_join(view, arguments, "zinterstore", true)
}

/// Serves `ZUNIONSTORE target count key …`: the number of members that any source has.
pub(super) fn store_union(view: &mut UnitView, arguments: &Arguments<'_>) -> CommandResult {
    store_join(view, arguments, "zunionstore", false)
}

/// The keys that are joined, their weights, and how.
struct Join<'a> {
    /// The keys, each with its weight.
    sources: Vec<(&'a [u8], f64)>,
    /// What becomes of scores of one member.
    aggregate: Aggregate,
}

impl<'a> Join<'a> {
    /// Number of keys that the arguments say that there are.
    fn key_count(arguments: &[&[u8]], command: &str) -> Result<usize, Stop> {
        let count = integer(arguments[2])?;
        if count < 1 {
            return Err(Stop::Refused(format!("ERR at least 1 input key is needed for '{command}' command")));
        }
        let count = usize::try_from(count).map_err(|_| not_an_integer())?;
        if count > arguments.len() - 3 { Err(syntax_error()) } else { Ok(count) }
    }

    /// Reads the options.
    fn read(keys: &[&'a [u8]], mut options: &[&'a [u8]]) -> Result<Self, Stop> {
        let count = keys.len();
        let mut weights = vec![1.0; count];
        let mut aggregate = Aggregate::Sum;

        while let Some((option, after)) = options.split_first() {
            if is_word(option, "WEIGHTS") && after.len() >= count {
                let (given, after) = after.split_at(count);
                let weight = |weight: &&[u8]| {
                    parse_double(weight).ok_or_else(|| Stop::refused("ERR weight value is not a float"))
                };
                weights = given.iter().map(weight).collect::<Result<_, _>>()?;
                options = after;
            } else if is_word(option, "AGGREGATE")
                && let [how, after @ ..] = after
            {
                aggregate = match how.to_ascii_uppercase().as_slice() {
                    b"SUM" => Aggregate::Sum,
                    b"MIN" => Aggregate::Min,
                    b"MAX" => Aggregate::Max,
                    _ => return Err(syntax_error()),
                };
                options = after;
            } else {
                return Err(syntax_error());
            }
        }
        Ok(Self { sources: keys.iter().copied().zip(weights).collect(), aggregate })
    }
}

/// A source of a join. It shares its members with the view: the same one may be named thousands of times.
enum JoinSource {
    /// Each member has a score of 1.
    Set(Arc<SetMembers>),
    Sorted(Arc<SortedMembers>),
}

impl JoinSource {
    fn read(view: &mut UnitView, key: &[u8]) -> Result<Self, Stop> {
        if view.kind(key)? == Some(DatumKind::Set) {
            return view.read(key).map(Self::Set);
        }
        view.read(key).map(Self::Sorted)
    }

    /// Fails if the value of a key can be no source.
    fn check_kind(view: &mut UnitView, key: &[u8]) -> Result<(), Stop> {
        match view.kind(key)? {
            None | Some(DatumKind::Set | DatumKind::Sorted) => Ok(()),
            Some(DatumKind::Text | DatumKind::List | DatumKind::Hash) => Err(Stop::wrong_type()),
        }
    }

    /// Number of members.
    fn len(&self) -> usize {
        match self {
            Self::Set(members) => members.len(),
            Self::Sorted(members) => members.len(),
        }
    }

    /// The members with their scores.
    fn members(&self) -> Box<dyn Iterator<Item = (&Vec<u8>, f64)> + '_> {
        match self {
            Self::Set(members) => Box::new(members.in_order().map(|(member, ())| (member, 1.0))),
            Self::Sorted(members) => Box::new(members.in_order().map(|(member, score)| (member, score.number()))),
        }
    }
}

/// Joins the sources. The target is replaced, and gone if nothing is left.
fn store_join(view: &mut UnitView, arguments: &Arguments<'_>, command: &str, is_intersection: bool) -> CommandResult {
    let count = Join::key_count(arguments, command)?;
    let (keys, options) = arguments[3..].split_at(count);
    view.exists(arguments[1])?;

    // The types of all sources are looked at before the options.
    for key in keys {
        JoinSource::check_kind(view, key)?;
    }
    let Join { sources, aggregate } = Join::read(keys, options)?;
    let mut read = Vec::with_capacity(sources.len());
    for (key, weight) in sources {
        read.push((JoinSource::read(view, key)?, weight));
    }
    // The smallest source comes first, as with Redis: only its weighted scores are made numbers before they are joined.
    read.sort_by_key(|(members, _)| members.len());

    let mut joined: BTreeMap<&[u8], (usize, f64)> = BTreeMap::new();
    for (place, (source, weight)) in read.iter().enumerate() {
        for (member, score) in source.members() {
            view.spend_bytes(member.len())?;
            let weighted = score * weight;
            let weighted = if is_intersection && place > 0 { weighted } else { or_zero(weighted) };
            let entry = joined.entry(member).or_insert((0, weighted));
            if entry.0 > 0 {
                entry.1 = aggregate.join(entry.1, weighted);
            }
            entry.0 += 1;
        }
    }

    if is_intersection {
        joined.retain(|_, (count, _)| *count == read.len());
    }
    view.count_written(joined.keys().map(|member| member.len() + 8).sum())?;
    let mut members = SortedMembers::default();
    for (member, (_, number)) in joined {
        members.set(member, score(number)?);
    }
    let length = members.len();
    view.replace(arguments[1], members)?;
    Ok(RedisReply::count(length))
}
