//! Query and scan: many items in the order of their keys.
//!
//! A page ends at its limit, at [`PAGE_BYTES_MAX`], at [`ANSWER_BYTES_MAX`], or when the request's budget of work or the memory for decoded
//! items is used up. Items that a
//! segment or a filter leaves out, and locks that read as absent, cost as much as those that are shown.

use serde::Serialize;

use crate::{
    AttributeValue, DynamoCaller, DynamoEntry, DynamoStore, Item,
    database::{CachedTable, Database, ItemRequest, UndecodedItem, check_key_value},
    decoded::DecodedCharge,
    error::{Error, ErrorType, Result},
    expression::{
        Comparison, Condition,
        evaluate::Projection,
        keys::{KeyCondition, SortCondition},
        names::Placeholders,
        parse_condition, paths,
    },
    items::{invalid, projected, projection_with},
    key, legacy,
    request::{Capacity, ReadRequest, check_depth, one_generation, one_of, read, read_units, table_name},
    value::{item_size, json_bytes},
    work::{Exhausted, WorkBudget},
};

/// Number of bytes of items after which a page ends.
const PAGE_BYTES_MAX: usize = 1 << 20;
/// Number of bytes of an answer after which a page ends.
pub(crate) const ANSWER_BYTES_MAX: usize = 2 << 20;
/// Number of entries that are requested from the store at a time.
const ENTRIES_AT_A_TIME: usize = 128;

/// The answer to `Query` and to `Scan`.
#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct QueryAnswer {
    #[serde(skip_serializing_if = "Option::is_none")]
    items: Option<Vec<Item>>,
    count: usize,
    scanned_count: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_evaluated_key: Option<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumed_capacity: Option<Capacity>,
}

/// A range of the store's keys to look in.
struct Range {
    from: Vec<u8>,
    to: Option<Vec<u8>>,
}

/// An item that a page has got to.
struct LookedItem {
    /// Its key, with which the next page goes on.
    key: Option<Item>,
    /// None if it is of another segment, or reads as absent.
    item: Option<Item>,
    is_found: bool,
    decoded: Option<DecodedCharge>,
}

/// The reason why a page does not get to an item.
enum NotLookedAt {
    /// The request's work or the memory is used up.
    NoRoom(Error),
    Failed(Error),
}

/// The parameters that both operations have in common.
struct Reading<'a> {
    request: &'a ReadRequest,
    filter: Option<Condition>,
    projection: Option<Projection>,
    limit: usize,
}

impl<S: DynamoStore> Database<S> {
    pub(crate) async fn query(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Vec<u8>> {
        let request: ReadRequest = read(body)?;
        let name = table_name(request.table_name.as_ref())?;
        let has_expression = one_generation(
            &[
                ("ProjectionExpression", request.projection_expression.is_some()),
                ("FilterExpression", request.filter_expression.is_some()),
                ("KeyConditionExpression", request.key_condition_expression.is_some()),
            ],
            &[
                ("AttributesToGet", request.attributes_to_get.is_some()),
                ("QueryFilter", request.query_filter.is_some()),
                ("ConditionalOperator", request.conditional_operator.is_some()),
                // Both kinds may be together only if the keys are of the legacy kind.
                ("KeyConditions", request.key_conditions.is_some() && request.key_condition_expression.is_some()),
            ],
        )?;

        let placeholders = placeholders(&request)?;
        let keys = match (&request.key_condition_expression, &request.key_conditions) {
            (Some(text), _) => parse_condition(text, &placeholders).map_err(invalid("KeyConditionExpression"))?,
            (None, Some(conditions)) => legacy::condition(conditions, None)?,
            (None, None) => {
                return Err(Error::validation(
                    "Either the KeyConditions or KeyConditionExpression parameter must be specified in the request.",
                ));
            }
        };

        let reading = Reading::new(&request, &placeholders)?;
        placeholders.finish(has_expression)?;

        let known = self.table(caller, name).await?;
        let partition = &known.table.partition;
        let sort = known.table.sort.as_ref();
        let keys =
            KeyCondition::new(&keys, &partition.name, sort.map(|sort| &*sort.name)).map_err(Error::validation)?;

        if let Some(path) =
            reading.filter.iter().flat_map(paths).find(|path| known.table.key_names().any(|key| key == path.head()))
        {
            return Err(Error::validation(format!(
                "Filter Expression can only contain non-primary key attributes: Primary key attribute: {}",
                path.head()
            )));
        }

        let backwards = request.scan_index_forward == Some(false);
        let mut range = range(&known, &keys)?;
        if let Some(start) = &request.exclusive_start_key {
            let after = start_key(&known, start)?;
            // A page begins after the last key of the one before. A key of another partition lies outside of the range.
            if start.get(&partition.name) != Some(&keys.partition) {
                return Err(Error::validation(
                    "The provided starting key is outside query boundaries based on provided conditions",
                ));
            }
            range.begin_after(after, backwards);
        }

        self.pages(caller, &known, &reading, range, backwards, |_| true).await
    }

    pub(crate) async fn scan(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Vec<u8>> {
        let request: ReadRequest = read(body)?;
        let name = table_name(request.table_name.as_ref())?;
        let has_expression = one_generation(
            &[
                ("ProjectionExpression", request.projection_expression.is_some()),
                ("FilterExpression", request.filter_expression.is_some()),
            ],
            &[
                ("AttributesToGet", request.attributes_to_get.is_some()),
                ("ScanFilter", request.scan_filter.is_some()),
                ("ConditionalOperator", request.conditional_operator.is_some()),
            ],
        )?;

        let placeholders = placeholders(&request)?;
        let reading = Reading::new(&request, &placeholders)?;
        placeholders.finish(has_expression)?;

        let segments = segments(&request)?;

        let known = self.table(caller, name).await?;
        let items = known.items();
        let mut range = Range { to: key::after(&items), from: items };
        if let Some(start) = &request.exclusive_start_key {
            range.begin_after(start_key(&known, start)?, false);
        }

        // The segments of a parallel scan are disjoint and cover the table: each item is in the one that the hash of its partition names.
        let partition = &known.table.partition.name;
        let is_in_segment = |item: &Item| {
            segments.is_none_or(|(segment, total)| {
                let hash = item.get(partition).map_or(0, |value| crc32fast::hash(&key::last_part(value)));
                u64::from(hash) % total == segment
            })
        };

        self.pages(caller, &known, &reading, range, false, is_in_segment).await
    }

    /// Reads until the limit, the bytes of a page, or the end. Returns the answer as JSON.
    async fn pages(
        &self,
        caller: &DynamoCaller,
        known: &std::sync::Arc<CachedTable>,
        reading: &Reading<'_>,
        mut range: Range,
        backwards: bool,
        is_wanted: impl Fn(&Item) -> bool,
    ) -> Result<Vec<u8>> {
        let mut items = Vec::new();
        let mut kept = Vec::new();
        let mut since_turn = 0;
        let mut bytes = 0;
        let mut answer_bytes = 0;
        let mut answer = QueryAnswer::default();
        let work = WorkBudget::default();

        // The last item that was handled, whether it was shown or not. The next page goes on after it.
        let mut last_key: Option<Item> = None;
        'pages: loop {
            let at_a_time = ENTRIES_AT_A_TIME.min(reading.limit - answer.scanned_count);
            let page = self.store.list(caller, range.from.clone(), range.to.clone(), at_a_time, backwards).await?;
            let Some((last, _)) = page.entries.last() else { break };

            let last = last.clone();
            for (key, entry) in page.entries {
                let _turn = self.large_work.next_turn(&mut since_turn, entry.value.len()).await;
                let looked = self.look(caller, known, (key, entry), reading, &is_wanted, &work);
                // A page ends before the item that has no room in it. If that is its first one, no page would ever get further.
                let LookedItem { key, item, is_found, decoded } = match looked {
                    Ok(looked) => looked,
                    Err(NotLookedAt::NoRoom(_)) if last_key.is_some() => {
                        answer.last_evaluated_key = last_key;
                        break 'pages;
                    }
                    Err(NotLookedAt::NoRoom(error) | NotLookedAt::Failed(error)) => return Err(error),
                };

                // Items count as scanned, for the limit and for the price, whether the filter passes them or not.
                if let Some(item) = item {
                    answer.scanned_count += 1;
                    bytes += item_size(&item);
                    if is_found {
                        answer.count += 1;
                    }
                    if is_found && !reading.counts_only() {
                        let shown = projected(item, reading.projection.as_ref());
                        answer_bytes += json_bytes(&shown);
                        kept.extend(decoded.map(|decoded| decoded.cut_to(&shown)));
                        items.push(shown);
                    }
                }

                let is_full = answer.scanned_count == reading.limit
                    || bytes >= PAGE_BYTES_MAX
                    || answer_bytes >= ANSWER_BYTES_MAX
                    || work.is_exhausted();
                if is_full {
                    answer.last_evaluated_key = key;
                    break 'pages;
                }

                last_key = key;
            }
            if !page.more {
                break;
            }
            range.begin_after(last, backwards);
        }

        let units = read_units(bytes, reading.request.consistent_read.unwrap_or(false));
        let asked = reading.request.return_consumed_capacity.as_deref();
        answer.consumed_capacity = Capacity::new(asked, &known.table.name, units);
        answer.items = (!reading.counts_only()).then_some(items);

        let _turn = self.large_work.turn(answer_bytes).await;
        Ok(serde_json::to_vec(&answer).expect("texts and numbers are JSON"))
    }

    /// Reads an entry, and says whether its item is one of those that are looked for.
    fn look(
        &self,
        caller: &DynamoCaller,
        known: &std::sync::Arc<CachedTable>,
        (key, entry): (Vec<u8>, DynamoEntry),
        reading: &Reading<'_>,
        is_wanted: &impl Fn(&Item) -> bool,
        work: &WorkBudget,
    ) -> Result<LookedItem, NotLookedAt> {
        let is_affordable = work.spend_stored(entry.value.len());
        let located =
            self.located(caller, UndecodedItem { known: std::sync::Arc::clone(known), key, entry: Some(entry) })?;
        let key = located.stored.as_ref().map(|(record, _)| known.key_attributes(&record.item));
        let item = located.shown.filter(is_wanted);

        is_affordable?;
        let is_found = match &item {
            Some(item) => reading.finds(item, work)?,
            None => false,
        };
        Ok(LookedItem { key, item, is_found, decoded: located.decoded })
    }
}

impl From<Error> for NotLookedAt {
    fn from(error: Error) -> Self {
        if error.kind == ErrorType::Throttled { Self::NoRoom(error) } else { Self::Failed(error) }
    }
}

impl From<Exhausted> for NotLookedAt {
    fn from(exhausted: Exhausted) -> Self {
        Self::NoRoom(exhausted.into())
    }
}

impl<'a> Reading<'a> {
    fn new(request: &'a ReadRequest, placeholders: &Placeholders<'_>) -> Result<Self> {
        if let Some(index) = &request.index_name {
            return Err(Error::validation(format!("The table does not have the specified index: {index}")));
        }

        let select = ["SPECIFIC_ATTRIBUTES", "COUNT", "ALL_ATTRIBUTES", "ALL_PROJECTED_ATTRIBUTES"];
        one_of(request.select.as_ref(), "select", &select)?;

        let limit = request.limit.map(|limit| {
            usize::try_from(limit).ok().filter(|limit| *limit > 0).ok_or_else(|| {
                Error::constraint(limit.to_string(), "limit", "Member must have value greater than or equal to 1")
            })
        });

        let legacy_filter = request.query_filter.as_ref().or(request.scan_filter.as_ref());
        let filter = match (&request.filter_expression, legacy_filter) {
            (Some(text), _) => Some(parse_condition(text, placeholders).map_err(invalid("FilterExpression"))?),
            (None, Some(filter)) => Some(legacy::condition(filter, request.conditional_operator.as_deref())?),
            (None, None) => None,
        };
        let projection = projection_with(request, placeholders)?;

        if request.select.as_deref() == Some("COUNT") && projection.is_some() {
            return Err(Error::validation("Cannot specify the AttributesToGet when choosing to get only the Count"));
        }

        Ok(Self { request, filter, projection, limit: limit.transpose()?.unwrap_or(usize::MAX) })
    }

    /// Whether an item passes the filter.
    fn finds(&self, item: &Item, work: &WorkBudget) -> Result<bool, Exhausted> {
        match &self.filter {
            Some(filter) => filter.holds(item, work),
            None => Ok(true),
        }
    }

    fn counts_only(&self) -> bool {
        self.request.select.as_deref() == Some("COUNT")
    }
}

impl Range {
    /// Lets the range begin after a key; backwards, end before it. A key outside of the range changes nothing: it must not widen it.
    fn begin_after(&mut self, key: Vec<u8>, backwards: bool) {
        if backwards {
            if self.to.as_ref().is_none_or(|to| *to > key) {
                self.to = Some(key);
            }
        } else if self.from <= key {
            self.from = next_key(key);
        }
    }
}

/// Returns the next key: no key lies between a key and the same key with a zero byte.
fn next_key(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

fn placeholders(request: &ReadRequest) -> Result<Placeholders<'_>> {
    check_depth(request.expression_attribute_values.iter().flat_map(Item::values))?;
    Placeholders::new(request.expression_attribute_names.as_ref(), request.expression_attribute_values.as_ref())
}

/// Returns the range of the keys that satisfy a key condition.
fn range(known: &CachedTable, keys: &KeyCondition) -> Result<Range> {
    let of_type = |value: &AttributeValue, kind: &str| {
        if value.kind() == kind {
            return Ok(key::last_part(value));
        }
        Err(Error::parameters("Condition parameter type does not match schema type"))
    };

    let partition = &known.table.partition;
    of_type(&keys.partition, &partition.kind)?;
    check_key_value(&partition.name, &keys.partition, true)?;
    let Some(sort) = &known.table.sort else {
        let from = key::item_key(&known.items(), &keys.partition, None);
        return Ok(Range { to: Some(next_key(from.clone())), from });
    };

    let base = key::partition_prefix(&known.items(), &keys.partition);
    let end = || key::after(&base);
    let at = |value: &AttributeValue| Ok::<_, Error>([base.clone(), of_type(value, &sort.kind)?].concat());

    Ok(match &keys.sort {
        None => Range { from: base.clone(), to: end() },
        Some(SortCondition::Compare(comparison, value)) => {
            let at = at(value)?;
            match comparison {
                Comparison::Equal | Comparison::NotEqual => Range { from: at.clone(), to: Some(next_key(at)) },
                Comparison::Less => Range { from: base.clone(), to: Some(at) },
                Comparison::LessOrEqual => Range { from: base.clone(), to: Some(next_key(at)) },
                Comparison::Greater => Range { from: next_key(at), to: end() },
                Comparison::GreaterOrEqual => Range { from: at, to: end() },
            }
        }
        Some(SortCondition::Between(low, high)) => Range { from: at(low)?, to: Some(next_key(at(high)?)) },
        Some(SortCondition::BeginsWith(prefix)) => {
            let from = at(prefix)?;
            Range { to: key::after(&from), from }
        }
    })
}

/// Returns the key at which the last page ended.
fn start_key(known: &CachedTable, start: &Item) -> Result<Vec<u8>> {
    known
        .key_of(&ItemRequest { table: &known.table.name, attributes: start, is_key: true })
        .map_err(|error| Error::validation(format!("The provided starting key is invalid: {}", error.message)))
}

/// Returns the segment and the number of segments.
fn segments(request: &ReadRequest) -> Result<Option<(u64, u64)>> {
    match (request.segment, request.total_segments) {
        (None, None) => Ok(None),
        (Some(_), None) => Err(Error::validation(
            "The TotalSegments parameter is required but was not present in the request when Segment parameter is present",
        )),
        (None, Some(_)) => Err(Error::validation(
            "The Segment parameter is required but was not present in the request when parameter TotalSegments is present",
        )),
        (Some(segment), Some(total)) if !(1..=1_000_000).contains(&total) || segment < 0 => Err(Error::constraint(
            if segment < 0 { segment } else { total }.to_string(),
            if segment < 0 { "segment" } else { "totalSegments" },
            "Member must have value between 1 (a segment: 0) and 1000000",
        )),
        (Some(segment), Some(total)) if segment >= total => Err(Error::validation(format!(
            "The Segment parameter is zero-based and must be less than parameter TotalSegments: Segment: {segment} is \
             not less than TotalSegments: {total}"
        ))),
        (Some(segment), Some(total)) => Ok(Some((segment.unsigned_abs(), total.unsigned_abs()))),
    }
}
