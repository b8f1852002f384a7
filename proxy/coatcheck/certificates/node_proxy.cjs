// Sends the connections of every Node client through the proxy that HTTPS_PROXY names.
//
// Node does this from 22.21 and 24.5 on (NODE_USE_ENV_PROXY), for fetch and for agents of its own. Earlier ones never
// do, and no version does it for the agents that clients make (stripe, aws-sdk) and for `ws`, which has none.
// `node --require` loads this file first. Loopback and what NO_PROXY names are connected to directly.
'use strict';

const address = process.env.https_proxy || process.env.HTTPS_PROXY || '';
if (address.startsWith('http://')) {
  const http = require('http');
  const https = require('https');
  const net = require('net');
  const tls = require('tls');

  const proxy = new URL(address);
  const proxyHost = proxy.hostname.replace(/^\[|\]$/g, '');
  const proxyPort = Number(proxy.port || 80);
  const login = proxy.username
    ? 'Proxy-Authorization: Basic ' +
      Buffer.from(decodeURIComponent(proxy.username) + ':' + decodeURIComponent(proxy.password)).toString('base64') +
      '\r\n'
    : '';
  const direct = (process.env.no_proxy || process.env.NO_PROXY || '')
    .split(',').map((each) => each.trim().toLowerCase().replace(/^\*?\./, '')).filter(Boolean);
  const [major, minor] = process.versions.node.split('.').map(Number);
  const native = process.env.NODE_USE_ENV_PROXY === '1' && (major > 24 || (major === 24 && minor >= 5) ||
    (major === 22 && minor >= 21));
  const MAX_HEAD = 65536;

  const isDirect = (host, port) => {
    const name = String(host || 'localhost').toLowerCase().replace(/^\[|\]$/g, '');
    if (name === proxyHost && Number(port) === proxyPort) return true; // a client that knows of the proxy
    if (name === 'localhost' || name.endsWith('.localhost') || name === '::1' || /^127\./.test(name)) return true;
    return direct.some((each) => each === '*' || name === each || name.endsWith('.' + each) ||
      `${name}:${port}` === each);
  };

  // A refusal's body says why; without it all that a client could show is a closed connection.
  const refusal = (head, body) => {
    const status = head.split('\r\n', 1)[0];
    let message = status;
    try { message = `${JSON.parse(body).message} (${status})`; } catch { /* not of ours */ }
    return Object.assign(new Error(message), { code: 'ECONNREFUSED' });
  };

  const tunnel = (host, port, callback) => {
    const name = net.isIPv6(host) ? `[${host}]` : host;
    const socket = net.connect(proxyPort, proxyHost);
    let seen = Buffer.alloc(0);
    let done = false;
    const finish = (error) => {
      if (done) return;
      done = true;
      socket.removeAllListeners('data').removeAllListeners('error').removeAllListeners('close');
      if (error) { socket.on('error', () => {}).destroy(); callback(error); } else { callback(null, socket); }
    };
    const end = () => {
      const [head, body] = seen.toString('latin1').split('\r\n\r\n', 2);
      finish(head ? refusal(head, body) : new Error('the proxy closed the connection'));
    };
    socket.on('error', finish).on('close', end);
    socket.once('connect', () => {
      socket.write(`CONNECT ${name}:${port} HTTP/1.1\r\nHost: ${name}:${port}\r\n${login}\r\n`);
    });
    socket.on('data', (data) => {
      seen = Buffer.concat([seen, data]);
      const at = seen.indexOf('\r\n\r\n');
      if (at < 0) {
        if (seen.length > MAX_HEAD) finish(new Error('the answer of the proxy has no end'));
        return;
      }
      const head = seen.toString('latin1', 0, at);
      if (/^HTTP\/1\.[01] 200 /.test(head)) {
        const rest = seen.subarray(at + 4);
        socket.pause();
        finish(null);
        if (rest.length) socket.unshift(rest);
        return;
      }
      const length = Number((/\r\ncontent-length: *(\d+)/i.exec(head) || [])[1] || 0);
      if (seen.length >= at + 4 + Math.min(length, MAX_HEAD)) end();
    });
  };

  const over = (socket, options) => tls.connect({ ...options, socket, path: undefined });

  const tunnelled = (secure) => (options, callback) => {
    tunnel(options.host || options.hostname, options.port, (error, socket) => {
      if (error) callback(error);
      else callback(null, secure ? over(socket, options) : socket);
    });
  };

  for (const [module, secure] of [[http, false], [https, true]]) {
    const prototype = module.Agent.prototype;
    const original = prototype.createConnection;
    prototype.createConnection = function createConnection(...args) {
      const options = args[0];
      const mine = typeof options === 'object' && options !== null && !options.socketPath && !options.path &&
        !options.socket && !(this && this.options && this.options.proxyEnv) &&
        !isDirect(options.host || options.hostname, options.port);
      return mine ? tunnelled(secure)(...args) : original.apply(this, args);
    };
    const request = module.request;
    module.request = function (...args) {
      // `ws` connects by itself, and only these two functions of its.
      const at = args.findIndex((each) => each && typeof each === 'object' && !(each instanceof URL));
      const options = args[at];
      const own = options && !options.agent && /^(?:net|tls)Connect$/.test((options.createConnection || {}).name);
      if (own && !options.socketPath && !isDirect(options.host || options.hostname, options.port)) {
        const name = options.servername || (net.isIP(options.host) ? '' : options.host);
        args[at] = { ...options, servername: name, createConnection: tunnelled(secure) };
      }
      return request.apply(this, args);
    };
  }

  if (!native) {
    void globalThis.Headers; // loads undici, which makes its dispatcher
    const dispatcher = Symbol.for('undici.globalDispatcher.1');
    const Agent = globalThis[dispatcher] && globalThis[dispatcher].constructor;
    if (Agent) {
      globalThis[dispatcher] = new Agent({
        connect(options, callback) {
          const secure = options.protocol === 'https:';
          const host = options.hostname.replace(/^\[|\]$/g, '');
          const port = Number(options.port || (secure ? 443 : 80));
          const connected = (error, socket) => {
            if (error) return callback(error, null);
            if (!secure) return callback(null, socket);
            const name = options.servername || (net.isIP(host) ? '' : host);
            const encrypted = over(socket, { servername: name, ALPNProtocols: ['http/1.1'], host });
            const failed = (problem) => callback(problem, null);
            encrypted.once('error', failed).once('secureConnect', () => {
              encrypted.removeListener('error', failed);
              callback(null, encrypted);
            });
          };
          if (!isDirect(host, port)) return tunnel(host, port, connected);
          const socket = net.connect(port, host);
          socket.once('error', connected).once('connect', () => {
            socket.removeListener('error', connected);
            connected(null, socket);
          });
        },
      });
    }
  }
  require('module').syncBuiltinESMExports();
}
