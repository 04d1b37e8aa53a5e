// The package by `require`: it works, and ends by itself.
const { connect, Lost } = require("@lockkeeper/client");

void (async () => {
  const client = connect({ ttlMs: 2_000 });
  const token = await client.using("required", { waitMs: 1_000 }, (lock) => lock.token);
  await client.close();
  console.log("token", typeof token, typeof Lost);
})();
