// usage: openid_provider.mjs FOLDER PORT CLIENT SECRET REDIRECT_URI
// A provider of OpenID Connect for tests: the package oidc-provider, which is certified, in FOLDER, with one client and any
// number of people. Each signs in with any password. The group of a person is the part of the name after the dot.
const [folder, port, client_id, client_secret, redirect_uri] = process.argv.slice(2);
const { default: Provider } = await import(`${folder}/node_modules/oidc-provider/lib/index.js`);

const claims = id => ({ sub: id, email: `${id}@example.com`, preferred_username: id, groups: [id.split('.')[1] ?? 'none'] });
const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id, client_secret, redirect_uris: [redirect_uri] }],
  claims: { openid: ['sub'], email: ['email'], profile: ['preferred_username'], groups: ['groups'] },
  conformIdTokenClaims: false,
  cookies: { keys: ['of the tests'] },
  findAccount: (_, id) => ({ accountId: id, claims: () => claims(id) }),
  pkce: { required: () => true },
});
provider.listen(Number(port), '127.0.0.1');
