# Completion of OATO's programs for fish: verbs, options and files, as their own --help tells them.
# It is installed once under the name of each program.
function __oato_words
    set -l words (commandline -opc)
    command -q $words[1]; or return
    set -l current (commandline -ct)
    set -l program (basename $words[1])
    set -l command $words[1]
    set -l help ($command --help 2> /dev/null)
    set -l i 2
    while true
        set verbs (printf '%s\n' $help | sed -nE "s/^  ([a-z][a-z-]*)  +([a-z].*)/\1\t\2/p; s/^ +$program ([a-z][a-z-]*) .*/\1/p")
        test $i -le (count $words); and contains -- $words[$i] (string replace -r '\t.*' '' -- $verbs); or break
        set -a command $words[$i]
        set help ($command --help 2> /dev/null)
        set i (math $i + 1)
    end
    if string match -q -- '-*' $current
        printf '%s\n' $help | sed -nE 's/^  (-.,|   ) (--[a-z-]+)( [^ ]+)? +(.*)/\2\t\4/p'
    else if test $i -gt (count $words)
        printf '%s\n' $verbs
    end
end
complete -c (string replace -r '.*/(.*)\.fish$' '$1' -- (status filename)) -a '(__oato_words)'
