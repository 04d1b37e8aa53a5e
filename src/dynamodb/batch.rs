//! Requests about many items: each item for itself, or all at once in a transaction.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Formatter},
    marker::PhantomData,
};

use serde::{
    Deserialize, Deserializer, Serialize,
    de::{IgnoredAny, SeqAccess, Visitor},
};

use crate::{
    DynamoCaller, DynamoStore, DynamoTxn, Item,
    database::{CachedTable, Database, ItemRequest, StoredItem, TRIES},
    error::{CancellationReason, Error, ErrorType, Result},
    expression::evaluate::Projection,
    item::{ItemRecord, RequestMark, bytes_of},
    items::{Planned, Prepared, WriteKind, projected, projection},
    key,
    once::{self, KeptTransaction, TransactionHash},
    query::ANSWER_BYTES_MAX,
    request::{Capacity, ReadRequest, WriteRequest, read, read_units, required, table_name},
    value::{item_size, json_bytes},
    work::{Exhausted, WorkBudget},
};

/// Maximum number of items in a request, by operation.
const BATCH_GETS_MAX: usize = 100;
const BATCH_WRITES_MAX: usize = 25;
const TRANSACTION_MAX: usize = 100;
/// Maximum number of bytes of all items of a transaction.
const TRANSACTION_BYTES_MAX: usize = 4 << 20;
/// Number of items read from the store at a time.
/// With the largest items, that is 6.5 MB.
const GETS_AT_A_TIME: usize = 16;

/// An item that a batch asks for, with its table.
type WantedItem<'a> = (&'a String, ItemRequest<'a>);
/// The projections of tables.
type Projections<'a> = BTreeMap<&'a String, Option<Projection>>;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BatchGet {
    #[serde(default)]
    request_items: Option<BTreeMap<String, ReadRequest>>,
    #[serde(default)]
    return_consumed_capacity: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct BatchGetResponse {
    responses: BTreeMap<String, Vec<Item>>,
    unprocessed_keys: BTreeMap<String, UnprocessedKeys>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    consumed_capacity: Vec<Capacity>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct UnprocessedKeys {
    keys: Vec<Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consistent_read: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    projection_expression: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expression_attribute_names: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes_to_get: Option<Vec<String>>,
}

impl UnprocessedKeys {
    /// Asks for other keys of the same table.
    fn new(asked: &ReadRequest) -> Self {
        Self {
            keys: Vec::new(),
            consistent_read: asked.consistent_read,
            projection_expression: asked.projection_expression.clone(),
            expression_attribute_names: asked.expression_attribute_names.clone(),
            attributes_to_get: asked.attributes_to_get.clone(),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BatchWrite {
    #[serde(default)]
    request_items: Option<BTreeMap<String, Vec<BatchPart>>>,
    #[serde(default)]
    return_consumed_capacity: Option<String>,
}

#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
struct BatchPart {
    #[serde(skip_serializing_if = "Option::is_none")]
    put_request: Option<PutPart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delete_request: Option<DeletePart>,
}

#[derive(Clone, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct PutPart {
    item: Item,
}

#[derive(Clone, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct DeletePart {
    key: Item,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct BatchWriteResponse {
    unprocessed_items: BTreeMap<String, Vec<BatchPart>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    consumed_capacity: Vec<Capacity>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TransactWrite {
    #[serde(default)]
    transact_items: Option<FirstParts<TransactPart>>,
    #[serde(default)]
    client_request_token: Option<String>,
    #[serde(default)]
    return_consumed_capacity: Option<String>,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase", default)]
struct TransactPart {
    put: Option<WriteRequest>,
    update: Option<WriteRequest>,
    delete: Option<WriteRequest>,
    condition_check: Option<WriteRequest>,
}

/// The parts of a transaction. Where there are too many, the first ones show it, and the others are passed over: a part of two bytes would
/// take two kilobytes.
struct FirstParts<T>(Vec<T>);

/// Reads the first parts.
struct PartsVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for FirstParts<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(PartsVisitor(PhantomData))
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for PartsVisitor<T> {
    type Value = FirstParts<T>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FirstParts<T>, A::Error> {
        let mut parts = Vec::new();
        while parts.len() <= TRANSACTION_MAX {
            match list.next_element()? {
                Some(part) => parts.push(part),
                None => return Ok(FirstParts(parts)),
            }
        }

        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(FirstParts(parts))
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct TransactWriteResponse {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    consumed_capacity: Vec<Capacity>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct TransactGet {
    #[serde(default)]
    transact_items: Option<FirstParts<GetPart>>,
    #[serde(default)]
    return_consumed_capacity: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct GetPart {
    get: ReadRequest,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct TransactGetResponse {
    responses: Vec<TransactGetItem>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    consumed_capacity: Vec<Capacity>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct TransactGetItem {
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<Item>,
}

/// The capacity units that each table cost.
#[derive(Default)]
struct Costs(BTreeMap<String, f64>);

impl Costs {
    fn add(&mut self, table: &str, units: f64) {
        *self.0.entry(table.to_owned()).or_default() += units;
    }

    fn shown(self, asked: Option<&str>) -> Vec<Capacity> {
        self.0.iter().filter_map(|(table, units)| Capacity::new(asked, table, *units)).collect()
    }
}

fn json(response: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(response).expect("texts and numbers are JSON")
}

/// Has the client ask again for a key of a table, as it has asked for it.
fn leave_key(left: &mut BTreeMap<String, UnprocessedKeys>, table: &str, asked: &ReadRequest, key: &Item) {
    let of_table = left.entry(table.to_owned()).or_insert_with(|| UnprocessedKeys::new(asked));
    of_table.keys.push(key.clone());
}

/// What was read; `None` if there is no room for it now and something is answered: the client asks again for what is left.
fn unless_throttled<T>(read: Result<T>, answered: usize) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind == ErrorType::Throttled && answered > 0 => Ok(None),
        Err(error) => Err(error),
    }
}

/// The items that a batch asks for, each with its table, and the projection of each table. Fails if one of them is asked for twice.
fn wanted_items(asked: &BTreeMap<String, ReadRequest>) -> Result<(Vec<WantedItem<'_>>, Projections<'_>)> {
    let mut wanted = Vec::new();
    let mut projections = Projections::new();

    for (name, of_table) in asked {
        let table = table_name(Some(name))?;
        projections.insert(name, projection(of_table)?);
        let keys = required(of_table.keys.as_ref(), "RequestItems.member.keys")?;
        let mut different = BTreeSet::new();
        if !keys.iter().all(|key| different.insert(bytes_of(key))) {
            return Err(duplicates());
        }
        wanted.extend(keys.iter().map(|attributes| (name, ItemRequest { table, attributes, is_key: true })));
    }
    Ok((wanted, projections))
}

fn duplicates() -> Error {
    Error::validation("Provided list of item keys contains duplicates")
}

impl<S: DynamoStore> Database<S> {
    pub(crate) async fn batch_get_item(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Vec<u8>> {
        let request: BatchGet = read(body)?;
        let asked = required(request.request_items.as_ref(), "RequestItems")?;

        // Look at their number first: everything below takes time for each of them.
        let keys_of = |of_table: &ReadRequest| of_table.keys.as_ref().map_or(0, Vec::len);
        if asked.len() > BATCH_GETS_MAX || asked.values().map(keys_of).sum::<usize>() > BATCH_GETS_MAX {
            return Err(Error::validation("Too many items requested for the BatchGetItem call"));
        }

        let (wanted, projections) = wanted_items(asked)?;
        if wanted.is_empty() {
            return Err(Error::validation(
                "1 validation error detected: Value '{}' at 'requestItems' failed to satisfy constraint: Member must \
                 have length greater than or equal to 1",
            ));
        }

        let mut responses: BTreeMap<_, _> = asked.keys().map(|name| (name.clone(), Vec::new())).collect();
        let mut unprocessed_keys = BTreeMap::<String, UnprocessedKeys>::new();
        let mut costs = Costs::default();
        let mut kept = Vec::new();
        let mut answer_bytes = 0;
        let work = WorkBudget::default();

        let mut answered = 0;
        let mut is_full = false;
        let mut since_turn = 0;

        for chunk in wanted.chunks(GETS_AT_A_TIME) {
            let mut found = Vec::new();
            if !is_full {
                let parts: Vec<_> = chunk.iter().map(|(_, wanted)| ItemRequest { ..*wanted }).collect();
                let read = self.find(caller, &parts, &[]).await.map(|(found, _)| found);
                found = unless_throttled(read, answered)?.unwrap_or_default();
            }

            // Items are decoded one by one: in memory, each takes much more than in the store.
            let mut found = found.into_iter();
            for (name, wanted) in chunk {
                let located = match found.next().filter(|_| !is_full) {
                    Some(item) => {
                        let _turn = self.large_work.next_turn(&mut since_turn, item.bytes()).await;
                        unless_throttled(self.located(caller, item), answered)?
                    }
                    None => None,
                };
                let Some(located) = located else {
                    is_full = true;
                    leave_key(&mut unprocessed_keys, name, &asked[*name], wanted.attributes);
                    continue;
                };

                answered += 1;
                let size = located.shown.as_ref().map_or(0, item_size);
                // If this item uses up the budget, the answer ends after it.
                let (Ok(()) | Err(Exhausted)) = work.spend_stored(size);
                costs.add(&located.known.table.name, read_units(size, asked[*name].consistent_read.unwrap_or(false)));
                if let (Some(item), Some(items)) = (located.shown, responses.get_mut(*name)) {
                    let shown = projected(item, projections[*name].as_ref());
                    answer_bytes += json_bytes(&shown);
                    kept.extend(located.decoded.map(|decoded| decoded.cut_to(&shown)));
                    items.push(shown);
                }
                is_full = answer_bytes >= ANSWER_BYTES_MAX || work.is_exhausted();
            }
        }

        let consumed_capacity = costs.shown(request.return_consumed_capacity.as_deref());
        Ok(json(&BatchGetResponse { responses, unprocessed_keys, consumed_capacity }))
    }

    /// Checks all parts, then writes them one by one: a batch is not a transaction. Parts for which the store has no time are returned to
    /// the client, which sends them again. The check needs the keys alone, and drops what it read: each write reads its item once more.
    pub(crate) async fn batch_write_item(
        &self,
        caller: &DynamoCaller,
        body: &[u8],
        mark: Option<RequestMark>,
    ) -> Result<Vec<u8>> {
        let request: BatchWrite = read(body)?;
        let asked = required(request.request_items.as_ref(), "RequestItems")?;
        if asked.values().map(Vec::len).sum::<usize>() > BATCH_WRITES_MAX {
            return Err(Error::validation("Too many items requested for the BatchWriteItem call"));
        }

        let mut changes = Vec::new();
        for (table, parts) in asked {
            for part in parts {
                let change = match part {
                    BatchPart { put_request: Some(put), delete_request: None } => {
                        let table_name = Some(table.clone());
                        (
                            WriteRequest { table_name, item: Some(put.item.clone()), ..WriteRequest::default() },
                            WriteKind::Put,
                        )
                    }
                    BatchPart { put_request: None, delete_request: Some(delete) } => {
                        let table_name = Some(table.clone());
                        let key = Some(delete.key.clone());
                        (WriteRequest { table_name, key, ..WriteRequest::default() }, WriteKind::Delete)
                    }
                    BatchPart { .. } => {
                        return Err(Error::validation(
                            "Supplied AttributeValue has more than one datatypes set, must contain exactly one of the \
                             supported datatypes",
                        ));
                    }
                };
                changes.push((table, part, change));
            }
        }

        if changes.is_empty() {
            return Err(Error::validation(
                "1 validation error detected: Value '{}' at 'requestItems' failed to satisfy constraint: Member must \
                 have length greater than or equal to 1",
            ));
        }

        // Check everything before anything is written.
        let work = WorkBudget::default();
        let prepared: Vec<_> = changes
            .iter()
            .map(|(_, _, (request, role))| Prepared::new(request, *role, &work))
            .collect::<Result<_>>()?;
        let wanted: Vec<_> = prepared.iter().map(|prepared| ItemRequest { ..prepared.wanted }).collect();
        let (located, _) = self.locate(caller, &wanted, &[]).await?;

        if located.iter().enumerate().any(|(index, one)| located[..index].iter().any(|other| other.key == one.key)) {
            return Err(duplicates());
        }
        drop(located);

        let mut unprocessed_items = BTreeMap::<String, Vec<BatchPart>>::new();
        let mut costs = Costs::default();
        for (place, (table, part, (request, role))) in changes.iter().enumerate() {
            // A deletion is not remembered, because each would take a lease for its answer.
            let mark = mark.filter(|_| *role == WriteKind::Put).map(|mark| once::part_mark(&mark, place));
            match self.write(caller, request, *role, mark).await {
                Ok(_) => {
                    let bytes = request.item.as_ref().map_or(0, item_size);
                    costs.add(table_name(Some(*table))?, crate::request::write_units(bytes));
                }
                Err(error) if error.kind == ErrorType::Throttled => {
                    unprocessed_items.entry((*table).clone()).or_default().push((*part).clone());
                }
                Err(error) => return Err(error),
            }
        }

        let consumed_capacity = costs.shown(request.return_consumed_capacity.as_deref());
        Ok(json(&BatchWriteResponse { unprocessed_items, consumed_capacity }))
    }

    /// Reads, decides, and commits only if nothing that it read has changed: the conditions of DynamoDB are evaluated here and not in the
    /// table. A commit with a token also expects that its answer is absent (revision 0): of two repetitions at two nodes one commits, and
    /// the other finds the answer at its next try.
    pub(crate) async fn transact_write_items(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Vec<u8>> {
        let request: TransactWrite = read(body)?;
        let FirstParts(parts) = required(request.transact_items.as_ref(), "TransactItems")?;
        check_count(parts.len())?;

        let work = WorkBudget::default();
        let prepared: Vec<_> = parts.iter().map(|part| part.prepared(&work)).collect::<Result<_>>()?;
        let wanted: Vec<_> = prepared.iter().map(|prepared| ItemRequest { ..prepared.wanted }).collect();
        let mark = request.client_request_token.as_ref().map(|token| once::transaction_mark(caller, token));
        let answer_key: Vec<_> = mark.iter().map(|mark| key::answer_key(mark)).collect();
        let hash = if mark.is_some() { TransactionHash::new(parts, body) } else { TransactionHash::default() };

        for _ in 0..TRIES {
            let (located, answers) = self.locate(caller, &wanted, &answer_key).await?;
            // Read together with the items: between an answer that is read first and items that are read later, the lock could have been
            // lost.
            if let (Some(mark), Some(kept)) = (mark, answers.into_iter().flatten().next()) {
                let kept = once::kept_transaction(&kept.value, &hash).map_err(|()| token_of_another_request())?;
                match self.repeat(caller, kept, mark, &located).await? {
                    Some(answer) => return Ok(answer),
                    None => continue,
                }
            }

            check_items(&located)?;

            let plans: Vec<_> = prepared
                .iter()
                .zip(&located)
                .map(|(prepared, located)| prepared.plan(located, mark, self.options.rules(&located.known.table)))
                .collect();

            // All parts are planned also after the first that failed: the answer has a reason for each.
            if plans.iter().any(Result::is_err) {
                return Err(Error::cancelled(plans.into_iter().map(|plan| reason(plan.err())).collect()));
            }

            let _planned_decoded = caller.decoded.charge(plans.iter().flatten().map(Planned::decoded_bytes).sum())?;
            let mut txn = DynamoTxn::default();
            let mut costs = Costs::default();
            let mut locks = Vec::new();
            let mut records: BTreeMap<&str, (&CachedTable, Vec<ItemRecord>)> = BTreeMap::new();

            for (place, (located, plan)) in located.iter().zip(plans.into_iter().flatten()).enumerate() {
                // The table is a part of what was read: it must not be dropped, or changed, under the items.
                let table = (key::table_key(&located.known.table.name), located.known.modified);
                if !txn.expected.contains(&table) {
                    txn.expected.push(table);
                }
                txn.expected.push((located.key.clone(), located.modified()));
                // It counts twice, because DynamoDB prepares and commits.
                costs.add(&located.known.table.name, 2.0 * plan.units());

                if plan.is_tenure {
                    locks.push(place);
                }
                let of_table = records.entry(&located.known.table.name);
                of_table.or_insert_with(|| (&*located.known, Vec::new())).1.extend(plan.record);
                txn.writes.extend(plan.write);
            }

            let consumed_capacity = costs.shown(request.return_consumed_capacity.as_deref());
            let answer = json(&TransactWriteResponse { consumed_capacity });

            if let (Some(mark), Some(key)) = (&mark, answer_key.first()) {
                txn.expected.push((key.clone(), 0));
                let kept = KeptTransaction { locks, answer: answer.clone() };
                txn.writes.push(once::keep_transaction(caller, mark, &hash, &kept));
            }

            if self.store.commit(caller, txn).await?.succeeded {
                for (known, records) in records.values() {
                    self.note_use(caller, known, records).await;
                }
                return Ok(answer);
            }
        }

        Err(conflict(parts.len()))
    }

    pub(crate) async fn transact_get_items(&self, caller: &DynamoCaller, body: &[u8]) -> Result<Vec<u8>> {
        let request: TransactGet = read(body)?;
        let FirstParts(parts) = required(request.transact_items.as_ref(), "TransactItems")?;
        check_count(parts.len())?;

        let mut wanted = Vec::with_capacity(parts.len());
        let mut projections = Vec::with_capacity(parts.len());
        for GetPart { get } in parts {
            let table = table_name(get.table_name.as_ref())?;
            let attributes = required(get.key.as_ref(), "TransactItems.member.get.key")?;
            wanted.push(ItemRequest { table, attributes, is_key: true });
            projections.push(projection(get)?);
        }

        let (located, _) = self.locate(caller, &wanted, &[]).await?;
        check_bytes(&located)?;

        let mut costs = Costs::default();
        let mut responses = Vec::with_capacity(parts.len());
        for (located, projection) in located.into_iter().zip(&projections) {
            let size = located.shown.as_ref().map_or(0, item_size);
            costs.add(&located.known.table.name, 2.0 * read_units(size, true));
            responses.push(TransactGetItem { item: located.shown.map(|item| projected(item, projection.as_ref())) });
        }

        let consumed_capacity = costs.shown(request.return_consumed_capacity.as_deref());
        Ok(json(&TransactGetResponse { responses, consumed_capacity }))
    }

    /// The answer to a transaction that is sent again, once the leases of its locks are renewed. There is no answer if one of them has
    /// changed in the meantime. It is cancelled if a lock that it acquired is lost: executing the rest again would be worse.
    async fn repeat(
        &self,
        caller: &DynamoCaller,
        kept: KeptTransaction,
        mark: RequestMark,
        located: &[StoredItem],
    ) -> Result<Option<Vec<u8>>> {
        let is_lost = |place: usize, located: &StoredItem| kept.locks.contains(&place) && !located.is_as_left_by(mark);
        let lost: Vec<_> = located.iter().enumerate().map(|(place, located)| is_lost(place, located)).collect();
        if lost.contains(&true) {
            let failed = |is_lost: bool| reason(is_lost.then(|| Error::condition_failed(None)));
            return Err(Error::cancelled(lost.into_iter().map(failed).collect()));
        }

        let locks: Vec<_> = kept.locks.iter().filter_map(|place| located.get(*place)).collect();
        let is_renewed = self.renew(caller, &locks).await?;
        Ok(is_renewed.then_some(kept.answer))
    }
}

fn check_count(count: usize) -> Result<()> {
    if count == 0 || count > TRANSACTION_MAX {
        let constraint = if count == 0 { "greater than or equal to 1" } else { "less than or equal to 100" };
        return Err(Error::validation(format!(
            "1 validation error detected: Value at 'transactItems' failed to satisfy constraint: Member must have \
             length {constraint}"
        )));
    }
    Ok(())
}

/// A transaction may change an item once: its writes have no order.
fn check_items(located: &[StoredItem]) -> Result<()> {
    let is_repeated = |(index, one): (usize, &StoredItem)| located[..index].iter().any(|other| other.key == one.key);
    if located.iter().enumerate().any(is_repeated) {
        return Err(Error::validation("Transaction request cannot include multiple operations on one item"));
    }
    check_bytes(located)
}

/// The error of a transaction whose items others change all the time.
fn conflict(parts: usize) -> Error {
    let reason = CancellationReason { code: "TransactionConflict", message: None, item: None };
    Error::cancelled(vec![reason; parts])
}

fn token_of_another_request() -> Error {
    Error::new(
        ErrorType::IdempotentParameterMismatch,
        "The request uses the same client token as a previous, but non-identical request.",
    )
}

fn check_bytes(located: &[StoredItem]) -> Result<()> {
    let bytes: usize = located.iter().map(|located| located.shown.as_ref().map_or(0, item_size)).sum();
    if bytes > TRANSACTION_BYTES_MAX {
        return Err(Error::validation(format!(
            "the items of the transaction have {bytes} bytes, and the limit is {TRANSACTION_BYTES_MAX}: name fewer of them"
        )));
    }
    Ok(())
}

fn reason(error: Option<Error>) -> CancellationReason {
    match error {
        None => CancellationReason { code: "None", message: None, item: None },
        Some(Error { kind: ErrorType::ConditionalCheckFailed, message, item, .. }) => {
            CancellationReason { code: "ConditionalCheckFailed", message: Some(message), item }
        }
        Some(Error { message, .. }) => {
            CancellationReason { code: "ValidationError", message: Some(message), item: None }
        }
    }
}

impl TransactPart {
    fn prepared<'a>(&'a self, work: &'a WorkBudget) -> Result<Prepared<'a>> {
        let parts = [
            (&self.put, WriteKind::Put),
            (&self.update, WriteKind::Update),
            (&self.delete, WriteKind::Delete),
            (&self.condition_check, WriteKind::Check),
        ];

        let mut given = parts.into_iter().filter_map(|(request, role)| Some((request.as_ref()?, role)));
        match (given.next(), given.next()) {
            (Some((request, role)), None) => Prepared::new(request, role, work),
            _ => Err(Error::validation("TransactItems can only contain one of Check, Put, Update or Delete")),
        }
    }
}
