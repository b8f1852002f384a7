# Runs INSIDE the sandbox: git, whose credential helper gives it the handle as a password.
# First line of input: "clone" or "push".
set -e
read -r asked
helper='!f() { test "$1" = get && printf "username=x-access-token\npassword=%s\n" "$GITHUB_TOKEN"; }; f'
# The empty helper first: otherwise git would ask the system's helpers, if any, before ours.
git() { command git -c credential.helper= -c credential.helper="$helper" "$@"; }
fingerprint=$(printf %s "$GITHUB_TOKEN" | sha256sum | cut -c 1-8)
case $asked in
*clone*)
  git clone --quiet https://github.com/private.git work >&2
  said="$(git -C work rev-list --count HEAD) commit, README: $(cat work/README)"
  ;;
*push*)
  cd work
  echo "written in the sandbox" >agent.txt
  git add agent.txt
  git -c user.name=Agent -c user.email=agent@example.com commit --quiet -m "From the sandbox" >&2
  git push --quiet origin main >&2
  said="$(git rev-parse HEAD)"
  ;;
esac
printf '[{"sent": "%s", "said": "%s"}]\n' "$fingerprint" "$said"
cat >/dev/null
