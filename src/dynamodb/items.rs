//! One item: get, put, update, delete.
//!
//! A change is prepared from its request once, and then tried: read, decide, commit. Where the commit finds that the item has changed
//! since, it is tried again.

use serde::Serialize;

use crate::{
    DynamoCaller, DynamoCommitted, DynamoEntry, DynamoLease, DynamoStore, DynamoStoreError, DynamoTxn, DynamoWrite,
    Item,
    database::{Database, ITEM_BYTES_MAX, ItemRequest, StoredItem, TRIES},
    decoded::decoded_bytes,
    error::{Error, ErrorType, Result},
    expression::{
        Action, Condition, Path, evaluate::Projection, names::Placeholders, parse_condition, parse_projection,
        parse_update, paths, update,
    },
    item::{ItemRecord, RequestMark},
    key::answer_key,
    legacy,
    once::{self, Repeats},
    recipes::{self, Rules},
    request::{
        Capacity, ReadRequest, WriteRequest, check_depth, one_generation, one_of, read, read_units, required,
        table_name, write_units,
    },
    turns::ItemWriter,
    value::item_size,
    work::WorkBudget,
};
use lockkeeper_planted::Planted;

/// A change, read and checked as far as its request goes.
pub(crate) struct Prepared<'a> {
    pub(crate) wanted: ItemRequest<'a>,
    condition: Option<Condition>,
    change: ItemChange<'a>,
    /// The change is one of the older parameter that takes away, so it does nothing where there is no item.
    only_deletes: bool,
    shows_old_on_failure: bool,
    /// The budget of the whole request.
    work: &'a WorkBudget,
}

/// A change of an item.
enum ItemChange<'a> {
    Put(&'a Item),
    Update(Vec<Action>),
    Delete,
    /// Its condition is checked.
    Nothing,
}

/// Which change a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteKind {
    Put,
    Update,
    Delete,
    Check,
}

/// The state of a request that may have been sent before.
enum Recalled {
    /// It has not taken effect, as far as anything remembers.
    Nothing,
    /// Its item has changed since it was read.
    Stale,
    /// It took effect, and this was its answer.
    Answer(Vec<u8>),
    /// It took effect, and the answer shows its item at most.
    Item,
}

/// A change that has been decided.
pub(crate) struct Planned {
    pub(crate) write: Option<DynamoWrite>,
    pub(crate) record: Option<ItemRecord>,
    /// The item is a lock whose lease was over before, and still is.
    is_over: bool,
    /// The write acquires or renews a lock.
    pub(crate) is_tenure: bool,
    bytes: usize,
}

impl Planned {
    /// Nothing is written.
    fn nothing(bytes: usize) -> Self {
        Self { write: None, record: None, is_over: false, is_tenure: false, bytes }
    }

    /// What it would have cost.
    pub(crate) fn units(&self) -> f64 {
        write_units(self.bytes)
    }

    /// The memory of the item after the write, about.
    pub(crate) fn decoded_bytes(&self) -> usize {
        self.record.as_ref().map_or(0, |record| decoded_bytes(&record.item))
    }

    /// The item after the write, if the write leaves one, as it is shown with this revision.
    fn shown_at(&self, modified: u64, rules: Rules<'_>) -> Option<Item> {
        let record = self.record.as_ref();
        record.map(|record| recipes::shown_at(record, modified, self.is_over, rules))
    }
}

/// What a write answers of its item: the parameter `ReturnValues`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Returned {
    None,
    AllOld,
    AllNew,
    UpdatedOld,
    UpdatedNew,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct WriteResponse {
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumed_capacity: Option<Capacity>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct GetResponse {
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumed_capacity: Option<Capacity>,
}

impl<'a> Prepared<'a> {
    /// Checks all that can be checked of a request before its item is read.
    pub(crate) fn new(request: &'a WriteRequest, role: WriteKind, work: &'a WorkBudget) -> Result<Self> {
        let table = table_name(request.table_name.as_ref())?;
        let placeholders = Placeholders::new(
            request.expression_attribute_names.as_ref(),
            request.expression_attribute_values.as_ref(),
        )?;
        let has_expression = one_generation(
            &[
                ("UpdateExpression", request.update_expression.is_some()),
                ("ConditionExpression", request.condition_expression.is_some()),
            ],
            &[
                ("AttributeUpdates", request.attribute_updates.is_some()),
                ("Expected", request.expected.is_some()),
                ("ConditionalOperator", request.conditional_operator.is_some()),
            ],
        )?;

        // Check before other code walks through the values: a client can nest them to any depth, and a walk takes stack for each level.
        check_depth(request.expression_attribute_values.iter().flat_map(Item::values))?;
        let (attributes, change) = match role {
            WriteKind::Put => {
                let item = required(request.item.as_ref(), "Item")?;
                check_depth(item.values())?;
                if item_size(item) > ITEM_BYTES_MAX {
                    return Err(Error::validation("Item size has exceeded the maximum allowed size"));
                }
                (item, ItemChange::Put(item))
            }
            WriteKind::Update => {
                let actions = match (&request.update_expression, &request.attribute_updates) {
                    (Some(text), _) => parse_update(text, &placeholders).map_err(invalid("UpdateExpression"))?,
                    (None, Some(updates)) => legacy::actions(updates)?,
                    (None, None) => Vec::new(),
                };
                (required(request.key.as_ref(), "Key")?, ItemChange::Update(actions))
            }
            WriteKind::Delete => (required(request.key.as_ref(), "Key")?, ItemChange::Delete),
            WriteKind::Check => (required(request.key.as_ref(), "Key")?, ItemChange::Nothing),
        };

        let condition = match (&request.condition_expression, &request.expected) {
            (Some(text), _) => Some(parse_condition(text, &placeholders).map_err(invalid("ConditionExpression"))?),
            (None, Some(expected)) => Some(legacy::condition(expected, request.conditional_operator.as_deref())?),
            // A check is nothing but its condition, so that the parameter is the one that is missing.
            (None, None) if role == WriteKind::Check => {
                required(request.condition_expression.as_ref(), "ConditionExpression")?;
                None
            }
            (None, None) => None,
        };

        // Names and values that no expression has used are a mistake, as DynamoDB sees it. All expressions are parsed by now.
        placeholders.finish(has_expression)?;

        let on_failure = request.return_values_on_condition_check_failure.as_ref();
        one_of(on_failure, "returnValuesOnConditionCheckFailure", &["ALL_OLD", "NONE"])?;
        Ok(Self {
            wanted: ItemRequest { table, attributes, is_key: role != WriteKind::Put },
            condition,
            change,
            only_deletes: request.attribute_updates.as_ref().is_some_and(legacy::only_deletes),
            shows_old_on_failure: on_failure.is_some_and(|value| value == "ALL_OLD"),
            work,
        })
    }

    /// The paths that an update names.
    fn updated(&self) -> impl Iterator<Item = &Path> {
        let actions = if let ItemChange::Update(actions) = &self.change { actions.as_slice() } else { &[] };
        actions.iter().map(Action::path)
    }

    /// Whether the values that an update writes depend on the old ones, so that it does more when it is executed again.
    fn is_relative(&self) -> bool {
        let actions = if let ItemChange::Update(actions) = &self.change { actions.as_slice() } else { &[] };
        actions.iter().any(Action::is_relative) && !Planted::RetryCountsTwice.is_on()
    }

    /// Whether the write says something about a lock.
    fn says_tenure(&self) -> bool {
        let is_put = matches!(self.change, ItemChange::Put(_));
        is_put || self.updated().any(|path| recipes::is_of_tenure(path.head()))
    }

    /// How long the answer may be repeated to a request that is sent again, if the answer is kept.
    fn repeats(&self, returned: Returned, planned: &Planned) -> Option<Repeats> {
        let shows_old = matches!(returned, Returned::AllOld | Returned::UpdatedOld);
        match &self.change {
            // Answers that cannot be made from the item again are kept, each for as long as it is true: see [`once`].
            ItemChange::Delete if self.condition.is_none() => planned.write.is_some().then_some(Repeats::Always),
            ItemChange::Delete => Some(Repeats::WhileAbsent),
            ItemChange::Update(_) if self.is_relative() && !planned.is_tenure => Some(Repeats::Always),
            ItemChange::Put(_) | ItemChange::Update(_) => shows_old.then_some(Repeats::WhileWritten),
            ItemChange::Nothing => None,
        }
    }

    /// Plans the change of the stored item, or returns why it must not be changed.
    pub(crate) fn plan(&self, located: &StoredItem, mark: Option<RequestMark>, rules: Rules<'_>) -> Result<Planned> {
        let nested = self.condition.iter().flat_map(paths).chain(self.updated()).filter(|path| path.is_nested());
        let key_names: Vec<_> = located.known.table.key_names().collect();
        for path in nested {
            if key_names.contains(&path.head()) {
                return Err(Error::validation(format!(
                    "Key attributes must be scalars; list random access '[]' and map lookup '.' are not allowed: \
                     IndexKey: {}",
                    path.head()
                )));
            }
        }

        if let Some(path) = self.updated().find(|path| key_names.contains(&path.head())) {
            return Err(Error::parameters(format!(
                "Cannot update attribute {}. This attribute is part of the key",
                path.head()
            )));
        }

        // A condition on an item that does not exist is about an item without attributes.
        let nothing = Item::new();
        let seen = located.shown.as_ref();
        // After the checks of the request itself: DynamoDB refuses an update of a key attribute also where its condition does not hold.
        if let Some(condition) = &self.condition
            && !condition.holds(seen.unwrap_or(&nothing), self.work)?
        {
            return Err(Error::condition_failed(seen.filter(|_| self.shows_old_on_failure).cloned()));
        }

        // A write costs the larger one of the item before and after it.
        let old_bytes = seen.map_or(0, item_size);
        let mut item = match &self.change {
            ItemChange::Put(item) => (*item).clone(),
            // A `REMOVE` of an expression makes an item of its key; the deletions of the older parameter do not.
            ItemChange::Update(_) if self.only_deletes && located.stored.is_none() => {
                return Ok(Planned::nothing(old_bytes));
            }
            ItemChange::Update(actions) => {
                // Take the stored attributes, without those that are only shown.
                let stored = located.stored.as_ref().map(|(record, _)| &record.item);
                let item =
                    update::apply(stored.unwrap_or(self.wanted.attributes), actions).map_err(Error::validation)?;
                check_depth(item.values())?;
                if item_size(&item) > ITEM_BYTES_MAX {
                    return Err(Error::validation("Item size to update has exceeded the maximum allowed size"));
                }
                item
            }
            ItemChange::Delete => {
                let write = located.stored.is_some().then(|| DynamoWrite::Delete { key: located.key.clone() });
                return Ok(Planned { write, record: None, is_over: false, is_tenure: false, bytes: old_bytes });
            }
            ItemChange::Nothing => return Ok(Planned::nothing(old_bytes)),
        };

        let before = located.stored.as_ref().map(|(record, entry)| (record, entry));
        let (fence, lease) = recipes::written(before, &mut item, rules, self.says_tenure(), || {
            located.known.lock_name(self.wanted.attributes)
        });

        // DynamoDB charges for the larger one of the two items.
        let bytes = old_bytes.max(item_size(&item));
        // A write that says nothing of the lock leaves it as it was: over, and shown so.
        let is_over = lease == DynamoLease::Kept && before.is_some_and(|(_, entry)| entry.expired);
        let is_tenure = matches!(lease, DynamoLease::Granted { .. } | DynamoLease::Renewed);

        let record = ItemRecord { item, fence, mark };
        let write = DynamoWrite::Put { key: located.key.clone(), value: record.encode(), lease };
        Ok(Planned { write: Some(write), record: Some(record), is_over, is_tenure, bytes })
    }
}

/// Puts the parameter's name before the problem of an expression.
pub(crate) fn invalid(parameter: &str) -> impl Fn(String) -> Error {
    move |problem| Error::validation(format!("Invalid {parameter}: {problem}"))
}

fn json(response: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(response).expect("texts and numbers are JSON")
}

impl<S: DynamoStore> Database<S> {
    pub(crate) async fn write_item(
        &self,
        caller: &DynamoCaller,
        body: &[u8],
        role: WriteKind,
        mark: Option<RequestMark>,
    ) -> Result<Vec<u8>> {
        let request: WriteRequest = read(body)?;
        self.write(caller, &request, role, mark).await
    }

    /// Makes one change. Tries until nothing came between its read and its commit.
    pub(crate) async fn write(
        &self,
        caller: &DynamoCaller,
        request: &WriteRequest,
        role: WriteKind,
        mark: Option<RequestMark>,
    ) -> Result<Vec<u8>> {
        let returned = returned(request, role)?;
        one_of(request.return_consumed_capacity.as_ref(), "returnConsumedCapacity", &["INDEXES", "TOTAL", "NONE"])?;

        let work = WorkBudget::default();
        let prepared = Prepared::new(request, role, &work)?;
        let shows_old = matches!(returned, Returned::AllOld | Returned::UpdatedOld);
        let answer_key = mark.map(|mark| answer_key(&mark));
        // Only some writes keep their answers: the item itself remembers the others.
        let may_be_kept = role == WriteKind::Delete || shows_old || prepared.is_relative();
        let further: Vec<_> = answer_key.iter().filter(|_| may_be_kept).cloned().collect();

        let mut writer = ItemWriter::new(&self.turns);
        for _ in 0..TRIES {
            let (mut located, answers) = self.locate(caller, std::slice::from_ref(&prepared.wanted), &further).await?;
            let Some(located) = located.pop() else { break };
            if writer.has_waited_for(&located.key).await {
                continue;
            }

            let kept = answers.into_iter().flatten().next();
            if let Some(mark) = mark {
                match self.recall(caller, mark, &located, kept.as_ref(), shows_old).await? {
                    Recalled::Nothing => {}
                    Recalled::Stale => continue,
                    Recalled::Answer(answer) => return Ok(answer),
                    Recalled::Item => {
                        return Ok(self.response(request, &prepared, returned, None, located.shown.as_ref(), 0.0));
                    }
                }
            }

            let rules = self.options.rules(&located.known.table);
            let planned = prepared.plan(&located, mark, rules)?;
            let _planned_decoded = caller.decoded.charge(planned.decoded_bytes())?;
            let units = planned.units();
            let old = located.shown.as_ref();

            let Some(write) = planned.write.clone() else {
                return Ok(self.response(request, &prepared, returned, old, None, units));
            };
            // The table is expected as it was read, too: a write must not revive an item of a table that was dropped.
            let table = (crate::key::table_key(prepared.wanted.table), located.known.modified);
            let item = (located.key.clone(), located.modified());
            let txn = DynamoTxn { expected: vec![table, item], writes: vec![write] };

            let repeats = prepared.repeats(returned, &planned);
            let memory = mark.zip(answer_key.as_ref()).zip(repeats).map(|((mark, key), repeats)| {
                // Such an answer shows no token of this very write, whose revision is not known yet.
                let new = planned.shown_at(located.modified(), rules);
                let answer = self.response(request, &prepared, returned, old, new.as_ref(), units);
                let modified = kept.as_ref().map_or(0, |entry| entry.modified);
                (once::keep(caller, &mark, repeats, &answer), (key.clone(), modified))
            });

            let committed = self.commit_with(caller, txn, memory, role).await?;
            if !committed.succeeded {
                continue;
            }

            if let Some(record) = &planned.record {
                self.note_use(caller, &located.known, [record]).await;
            }

            let new = planned.shown_at(committed.revision, rules);
            return Ok(self.response(request, &prepared, returned, old, new.as_ref(), units));
        }
        Err(Error::new(ErrorType::Throttled, "too many writers change this item: try again"))
    }

    /// Looks whether the request with this mark took effect already. If so, the lease of its item is renewed first.
    async fn recall(
        &self,
        caller: &DynamoCaller,
        mark: RequestMark,
        located: &StoredItem,
        kept: Option<&DynamoEntry>,
        shows_old: bool,
    ) -> Result<Recalled> {
        let answer = kept.and_then(|entry| once::kept(&entry.value));
        let answer = answer.filter(|(repeats, _)| repeats.allows(mark, located));

        // The item says itself that this request wrote it last. That is enough for an answer, unless it shows what was there before.
        let is_as_left = located.is_as_left_by(mark);
        let is_remembered = answer.is_some() || is_as_left && !shows_old;
        if is_remembered && is_as_left && !self.renew(caller, &[located]).await? {
            return Ok(Recalled::Stale);
        }

        Ok(match answer {
            Some((_, answer)) => Recalled::Answer(answer.to_vec()),
            None if is_remembered => Recalled::Item,
            None => Recalled::Nothing,
        })
    }

    /// Renews the leases of these items, of those that have one and all at once, before a request that acquired them is answered again:
    /// some clients count their lease from the answer. Returns `false` if one of the items has changed meanwhile.
    pub(crate) async fn renew(&self, caller: &DynamoCaller, items: &[&StoredItem]) -> Result<bool> {
        let mut txn = DynamoTxn::default();
        for located in items {
            let Some((record, entry)) = located.stored.as_ref().filter(|(_, entry)| entry.leased) else { continue };
            let renewed = ItemRecord { fence: recipes::kept(record, entry), ..record.clone() };
            txn.writes.push(DynamoWrite::Put {
                key: located.key.clone(),
                value: renewed.encode(),
                lease: DynamoLease::Renewed,
            });

            let table = (crate::key::table_key(&located.known.table.name), located.known.modified);
            if !txn.expected.contains(&table) {
                txn.expected.push(table);
            }
            txn.expected.push((located.key.clone(), entry.modified));
        }

        if txn.writes.is_empty() {
            return Ok(true);
        }
        Ok(self.store.commit(caller, txn).await?.succeeded)
    }

    /// Commits a write together with its answer. A write that gives something back is committed without the answer if there is no room for
    /// it.
    async fn commit_with(
        &self,
        caller: &DynamoCaller,
        txn: DynamoTxn,
        memory: Option<(DynamoWrite, (Vec<u8>, u64))>,
        role: WriteKind,
    ) -> Result<DynamoCommitted> {
        let txn = if Planted::ReadNotInCommit.is_on() { DynamoTxn { expected: Vec::new(), ..txn } } else { txn };
        let Some((write, expected)) = memory else { return Ok(self.store.commit(caller, txn).await?) };
        let mut remembered = txn.clone();
        remembered.writes.push(write);
        remembered.expected.push(expected);

        match self.store.commit(caller, remembered).await {
            Err(DynamoStoreError::TooLarge(_) | DynamoStoreError::Overloaded(_) | DynamoStoreError::Full(_))
                if role == WriteKind::Delete =>
            {
                Ok(self.store.commit(caller, txn).await?)
            }
            committed => Ok(committed?),
        }
    }

    fn response(
        &self,
        request: &WriteRequest,
        prepared: &Prepared<'_>,
        returned: Returned,
        old: Option<&Item>,
        new: Option<&Item>,
        units: f64,
    ) -> Vec<u8> {
        let attributes = match returned {
            Returned::None => None,
            Returned::AllOld => old.cloned(),
            Returned::AllNew => new.cloned(),
            Returned::UpdatedOld => old.map(|old| Projection::new(prepared.updated()).project(old)),
            Returned::UpdatedNew => new.map(|new| Projection::new(prepared.updated()).project(new)),
        };

        let attributes = attributes.filter(|attributes| !attributes.is_empty());
        let asked = request.return_consumed_capacity.as_deref();
        // Each write costs a unit, one that changes nothing too.
        let consumed_capacity = Capacity::new(asked, prepared.wanted.table, units.max(1.0));
        json(&WriteResponse { attributes, consumed_capacity })
    }

    pub(crate) async fn get_item(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Vec<u8>> {
        let request: ReadRequest = read(body)?;
        let table = table_name(request.table_name.as_ref())?;
        let attributes = required(request.key.as_ref(), "Key")?;
        let projection = projection(&request)?;

        let wanted = ItemRequest { table, attributes, is_key: true };
        let (mut located, _) = self.locate(caller, &[wanted], &[]).await?;
        let shown = located.pop().and_then(|located| located.shown);

        let units = read_units(shown.as_ref().map_or(0, item_size), request.consistent_read.unwrap_or(false));
        let consumed_capacity = Capacity::new(request.return_consumed_capacity.as_deref(), table, units);
        let item = shown.map(|item| projected(item, projection.as_ref()));
        Ok(json(&GetResponse { item, consumed_capacity }))
    }
}

/// The projection of a request that reads, unless it asks for whole items.
pub(crate) fn projection(request: &ReadRequest) -> Result<Option<Projection>> {
    let has_expression = one_generation(
        &[("ProjectionExpression", request.projection_expression.is_some())],
        &[("AttributesToGet", request.attributes_to_get.is_some())],
    )?;
    let placeholders = Placeholders::new(request.expression_attribute_names.as_ref(), None)?;
    let projection = projection_with(request, &placeholders)?;
    placeholders.finish(has_expression)?;
    Ok(projection)
}

pub(crate) fn projection_with(request: &ReadRequest, placeholders: &Placeholders<'_>) -> Result<Option<Projection>> {
    let paths = match (&request.projection_expression, &request.attributes_to_get) {
        (Some(text), _) => parse_projection(text, placeholders).map_err(invalid("ProjectionExpression"))?,
        (None, Some(names)) => legacy::paths(names)?,
        (None, None) => return Ok(None),
    };
    Ok(Some(Projection::new(&paths)))
}

pub(crate) fn projected(item: Item, projection: Option<&Projection>) -> Item {
    match projection {
        Some(projection) => projection.project(&item),
        None => item,
    }
}

fn returned(request: &WriteRequest, role: WriteKind) -> Result<Returned> {
    let all = ["ALL_NEW", "UPDATED_OLD", "ALL_OLD", "NONE", "UPDATED_NEW"];
    one_of(request.return_values.as_ref(), "returnValues", &all)?;
    Ok(match request.return_values.as_deref() {
        Some("ALL_OLD") => Returned::AllOld,
        None | Some("NONE") => Returned::None,
        Some(_) if role != WriteKind::Update => {
            return Err(Error::validation("Return values set to invalid value"));
        }
        Some("ALL_NEW") => Returned::AllNew,
        Some("UPDATED_OLD") => Returned::UpdatedOld,
        Some(_) => Returned::UpdatedNew,
    })
}
