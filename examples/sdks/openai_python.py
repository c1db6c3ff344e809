"""pip install openai"""

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
with client.chat.completions.stream(
    model="default",
    messages=[{"role": "user", "content": "Tell me a story."}],
    temperature=0.2,
    max_completion_tokens=200,
) as stream:
    for event in stream:
        if event.type == "content.delta":
            print(event.delta, end="", flush=True)
print()
