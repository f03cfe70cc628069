# Completion of OATO's programs for bash: verbs, options and files. The program's own --help, which
# is made from its tables of options, is asked, so that nothing here goes out of date.
_oato_verbs() { # HELP PROGRAM
    sed -nE "s/^  ([a-z][a-z-]*)  +[a-z].*/\1/p; s/^ +$2 ([a-z][a-z-]*) .*/\1/p" <<< "$1"
}
_oato() {
    local word=$2 command=("$1") help verbs i
    help=$("$1" --help 2> /dev/null)
    for ((i = 1; ; i++)); do
        verbs=$(_oato_verbs "$help" "${1##*/}")
        ((i < COMP_CWORD)) && [[ $'\n'$verbs$'\n' == *$'\n'"${COMP_WORDS[i]}"$'\n'* ]] || break
        command+=("${COMP_WORDS[i]}")
        help=$("${command[@]}" --help 2> /dev/null)
    done
    COMPREPLY=()
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(sed -nE 's/^  (-.,|   ) (--[a-z-]+).*/\2/p' <<< "$help")" -- "$word")
    elif ((i == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$word")
    fi
}
complete -o default -F _oato oato oato-run oato-plan oato-profile oato-serve
