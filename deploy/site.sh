#!/bin/sh
# Builds the documentation site from docs/ into build/site. A broken link is an error.
#   sh deploy/site.sh            builds the site; open build/site/index.html
#   sh deploy/site.sh serve      shows the site on 127.0.0.1:8000 and builds it again after each change
# mkdocs-material is installed from PyPI into build/site-venv. If that fails, the exit code is 77.
# EVALQ_REPOSITORY=https://HOST/OWNER/NAME is where links to files outside of docs/ lead. Without it,
# these links become plain text.
set -eu

cd "$(dirname "$0")/.."
venv=build/site-venv
if ! "$venv/bin/mkdocs" --version >/dev/null 2>&1; then
    rm -rf "$venv"
    if ! python3 -m venv "$venv" ||
        ! "$venv/bin/pip" install -q --retries 1 mkdocs==1.6.1 mkdocs-material==9.8.2; then
        rm -rf "$venv"
        echo "site: mkdocs-material cannot be installed from PyPI, see above" >&2
        exit 77
    fi
fi
export NO_MKDOCS_2_WARNING=1
if [ "${1:-}" = serve ]; then
    exec "$venv/bin/mkdocs" serve --strict -f deploy/site/mkdocs.yml -a 127.0.0.1:8000
fi
"$venv/bin/mkdocs" build --strict -f deploy/site/mkdocs.yml
echo "site: build/site/index.html, $(find build/site -name "*.html" | wc -l) pages"
