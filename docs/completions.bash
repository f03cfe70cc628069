# Completion of oato-run, oato-plan, oato-profile and oato-serve for bash: verbs, options and files. The program's
# own --help is asked, so that nothing here goes out of date.
_oato() {
    local program=$1 word=$2 verbs verb=${COMP_WORDS[1]}
    verbs=$("$program" --help 2> /dev/null |
        sed -nE 's/^  ([a-z]+) +[a-z].*/\1/p; s/^ +oato-plan ([a-z]+) .*/\1/p')
    COMPREPLY=()
    if [[ $word == -* ]]; then
        [[ " ${verbs//$'\n'/ } " == *" $verb "* ]] || verb=
        mapfile -t COMPREPLY < <(compgen -W "$("$program" ${verb:+"$verb"} --help 2> /dev/null |
            grep -oE '^  (-.,|   ) --[a-z-]+' | grep -oE -- '--[a-z-]+')" -- "$word")
    elif ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$word")
    fi
}
complete -o default -F _oato oato-run oato-plan oato-profile oato-serve
