// npm install openai
import OpenAI from "openai";

const client = new OpenAI({ baseURL: "http://127.0.0.1:8000/v1", apiKey: "none" });
const stream = client.chat.completions.stream({
  model: "default",
  messages: [{ role: "user", content: "Tell me a story." }],
  temperature: 0.2,
  max_completion_tokens: 200,
});
stream.on("content", (delta) => process.stdout.write(delta));
await stream.finalChatCompletion();
console.log();
