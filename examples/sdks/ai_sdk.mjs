// npm install ai @ai-sdk/openai-compatible
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { streamText } from "ai";

const local = createOpenAICompatible({ name: "rejoinder", baseURL: "http://127.0.0.1:8000/v1" });
const { textStream } = streamText({
  model: local("default"),
  prompt: "Tell me a story.",
  temperature: 0.2,
  maxOutputTokens: 200,
});
for await (const text of textStream) process.stdout.write(text);
console.log();
