// An environment in TypeScript: it asks until the reply has a word, three times at most.
//
// The contract is read as it is from plugin.proto, which build.sh writes with `rollout plugins contract`.
import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { rmSync } from "node:fs";
import { fileURLToPath } from "node:url";

const MESSAGE_BYTES_MAX = 64 << 20;
const TRIES_MAX = 3;
const SERVING = 1;
const OWNER_INFRASTRUCTURE = 3;

interface Episode {
  tries: number;
}

type Call<Request> = grpc.ServerUnaryCall<Request, object>;
type Answer = grpc.sendUnaryData<object>;

const episodes = new Map<string, Episode>();
let word = "please";

const plugin = {
  describe: (_: Call<object>, answer: Answer) =>
    answer(null, { contract: 1, name: "typescript-environment", version: "0.1.0", kind: "environment" }),
  configure: (call: Call<{ parameters: Record<string, string> }>, answer: Answer) => {
    word = call.request.parameters["word"] ?? "";
    const failure = { code: "empty-word", message: "word: expected a text that is not empty" };
    answer(null, word === "" ? { failure } : {});
  },
};

const environment = {
  start: (call: Call<{ episode: string; row_json: string }>, answer: Answer) => {
    const row = JSON.parse(call.request.row_json) as { prompt?: string };
    episodes.set(call.request.episode, { tries: 0 });
    answer(null, { state: { messages: [user(row.prompt ?? "")] } });
  },
  step: (call: Call<{ episode: string; text: string }>, answer: Answer) => {
    const episode = episodes.get(call.request.episode);
    if (episode === undefined) {
      const failure = { owner: OWNER_INFRASTRUCTURE, code: "unknown-episode", message: "it was not started here" };
      return answer(null, { failure });
    }
    episode.tries += 1;
    const heard = call.request.text.toLowerCase().includes(word);
    if (heard || episode.tries === TRIES_MAX) {
      const kind = heard ? "heard" : "gave-up";
      return answer(null, { ending: { kind, turn_reward: heard ? 1 : 0, signals: { tries: episode.tries } } });
    }
    answer(null, { state: { messages: [user(`Say ${word}.`)], signals: { tries: episode.tries } } });
  },
  close: (call: Call<{ episode: string }>, answer: Answer) => {
    episodes.delete(call.request.episode);
    answer(null, {});
  },
};

function user(text: string): object {
  return { role: "user", parts: [{ text }] };
}

function services(file: string): grpc.GrpcObject {
  const path = fileURLToPath(new URL(`../${file}`, import.meta.url));
  return grpc.loadPackageDefinition(loadSync(path, { keepCase: true, defaults: true, longs: Number }));
}

function service(root: grpc.GrpcObject, name: string): grpc.ServiceDefinition {
  const found = name.split(".").reduce<unknown>((at, part) => (at as grpc.GrpcObject)[part], root);
  return (found as grpc.ServiceClientConstructor).service;
}

const server = new grpc.Server({
  "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
  "grpc.max_send_message_length": MESSAGE_BYTES_MAX,
});
const contract = services("plugin.proto");
server.addService(service(contract, "rollout.plugin.v1.Plugin"), plugin);
server.addService(service(contract, "rollout.plugin.v1.Environment"), environment);
server.addService(service(services("health.proto"), "grpc.health.v1.Health"), {
  check: (_: Call<object>, answer: Answer) => answer(null, { status: SERVING }),
});
process.on("SIGTERM", () => server.tryShutdown(() => process.exit(0)));
const socket = process.env["ROLLOUT_PLUGIN_SOCKET"] ?? "";
rmSync(socket, { force: true }); // of a process before, where a container is started again
process.umask(0o007); // who calls is of the socket's group
server.bindAsync(`unix:${socket}`, grpc.ServerCredentials.createInsecure(), (error) => {
  if (error !== null) {
    console.error(error.message);
    process.exit(1);
  }
});
