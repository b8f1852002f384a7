# Runs INSIDE the sandbox: curl, with the proxy and the roots from its environment.
read -r asked
answer=$(curl --silent --show-error --fail-with-body --max-time 30 \
  --header "Authorization: Bearer $OPENAI_API_KEY" --header "Content-Type: application/json" \
  --data "{\"model\": \"gpt-4o-mini\", \"messages\": [{\"role\": \"user\", \"content\": $asked}]}" \
  https://api.openai.com/v1/chat/completions) || { echo "$answer" >&2; exit 1; }
fingerprint=$(printf %s "$OPENAI_API_KEY" | sha256sum | cut -c 1-8)
said=$(printf %s "$answer" | sed 's/.*"content": "\([^"]*\)".*/\1/')
printf '[{"sent": "%s", "said": "%s"}]\n' "$fingerprint" "$said"
cat >/dev/null
